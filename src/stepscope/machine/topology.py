"""The link matrix of ``nvidia-smi topo -m``: GPUs, NICs, the link of every pair, CPU and NUMA affinity.

Pure: text in, frozen data out. Reads what people paste as well: a shell prompt above it, tabs or blanks, terminal
escapes, the peer-to-peer matrix below it, rows that were cut off. The legend is never a link.
Legend: NVIDIA System Management Interface, ``nvidia-smi topo --help``; SOC and PSB are the names older drivers print.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from stepscope.core.dataclass import record
from stepscope.core.errors import Unavailable

LINK_KINDS: Mapping[str, str] = {
    "NV": "NVLink",
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "through the CPU's PCIe host bridge",
    "NODE": "between host bridges of one NUMA node",
    "SYS": "across NUMA nodes (the socket interconnect)",
}
"""Kinds from the closest to the farthest, with what they are."""

_PEER_STATES = frozenset({"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"})  # cells of the peer-to-peer matrix
_OLD_NAMES = {"SOC": "SYS", "PSB": "PIX"}
_ORDER = {kind: position for position, kind in enumerate(LINK_KINDS)}

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\(B|\x0f")
_DEVICE = re.compile(r"(?:GPU|NIC)\d+|(?:mlx[45]|bnxt_re|irdma|hfi1|efa|rdmap|roce|ibp)[\w.-]*")
_GPU = re.compile(r"GPU\d+")
_NVLINK = re.compile(r"NV(\d+)")
_TORN_COUNT = re.compile(r"(?<=NV)\d+\Z")
_AFFINITY = re.compile(r"(CPU|NUMA)\s+Affinity|GPU\s+NUMA\s+ID")
_NIC_LEGEND = re.compile(r"\s*(NIC\d+)\s*:\s*(\S+)\s*$")
_LIST = re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*")


@record
class Link:
    """kind: a key of LINK_KINDS. nvlinks: bonded NVLinks, 0 unless kind is NV."""

    kind: str
    nvlinks: int = 0

    @property
    def label(self) -> str:
        """The link as nvidia-smi prints it: ``NV18``, ``PIX``, ``SYS``."""
        return f"NV{self.nvlinks}" if self.kind == "NV" else self.kind

    @property
    def is_nvlink(self) -> bool:
        return self.kind == "NV"

    @property
    def crosses_socket(self) -> bool:
        return self.kind == "SYS"

    @property
    def distance(self) -> tuple[int, int]:
        """A key that sorts links from fast to slow."""
        return _ORDER[self.kind], -self.nvlinks


@record
class Device:
    """A row of the matrix. label: the NIC's device name from the NIC legend (``mlx5_0``)."""

    name: str
    is_gpu: bool
    label: str | None = None
    cpu_affinity: tuple[int, ...] | None = None  # None: N/A, not printed or not readable
    numa_affinity: tuple[int, ...] | None = None


@record
class Topology:
    """links: (a, b) and (b, a) of every pair that could be read. problems: what was damaged or contradictory."""

    devices: tuple[Device, ...]
    links: Mapping[tuple[str, str], Link]
    problems: tuple[str, ...] = ()

    @property
    def gpus(self) -> tuple[Device, ...]:
        return tuple(device for device in self.devices if device.is_gpu)

    @property
    def nics(self) -> tuple[Device, ...]:
        return tuple(device for device in self.devices if not device.is_gpu)

    def link(self, a: str, b: str) -> Link | None:
        """The link between two different devices; None: not in the text."""
        return self.links.get((a, b))

    def gpu_pairs(self) -> tuple[tuple[str, str], ...]:
        names = [gpu.name for gpu in self.gpus]
        return tuple((a, b) for i, a in enumerate(names) for b in names[i + 1 :])

    def pairs_of_kind(self, *kinds: str) -> tuple[tuple[str, str], ...]:
        """GPU pairs whose link is one of ``kinds``."""
        return tuple(pair for pair in self.gpu_pairs() if (link := self.link(*pair)) and link.kind in kinds)

    def fast_pairs(self) -> tuple[tuple[str, str], ...]:
        """GPU pairs joined by NVLink."""
        return self.pairs_of_kind("NV")

    def socket_crossing_pairs(self) -> tuple[tuple[str, str], ...]:
        """GPU pairs whose traffic crosses NUMA nodes."""
        return self.pairs_of_kind("SYS")

    def unknown_pairs(self) -> tuple[tuple[str, str], ...]:
        """GPU pairs whose link the text does not give."""
        return tuple(pair for pair in self.gpu_pairs() if self.link(*pair) is None)

    def nvlink_islands(self) -> tuple[tuple[str, ...], ...]:
        """GPUs that reach each other over NVLink, directly or through each other; a lone GPU is its own island."""
        names = [gpu.name for gpu in self.gpus]
        island = {name: {name} for name in names}
        for a, b in self.fast_pairs():
            if island[a] is not island[b]:
                island[a] |= island[b]
                for member in island[b]:
                    island[member] = island[a]
        islands = {id(members): members for members in island.values()}
        return tuple(tuple(name for name in names if name in members) for members in islands.values())

    def nearest_nics(self, gpu: str) -> tuple[str, ...]:
        """The NICs at the smallest distance from ``gpu``; empty when there are none."""
        reached = [(link.distance, nic.name) for nic in self.nics if (link := self.link(gpu, nic.name))]
        best = min((distance for distance, _ in reached), default=None)
        return tuple(name for distance, name in reached if distance == best)


MOST_NVLINKS = 18
"""NVLinks of the GPUs that have most (H100, H200, B200: NVIDIA Hopper and Blackwell whitepapers, 2022 and 2024)."""

_LINKS_BEHIND_A_SWITCH = frozenset({6, 8, 12, 16, 18})
"""NVLinks of GPUs that are sold behind NVSwitches: V100 6, A800 and H800 8, A100 12, some cut-down Hoppers 16, H100 18."""


def has_nvswitch(topology: Topology, *, links_per_gpu: int | None = None) -> bool | None:
    """Whether the GPUs hang on NVSwitches. None: the matrix allows both.

    Behind a switch every pair shows *all* NVLinks of a GPU. Wired directly, a GPU's links are shared out among its
    n - 1 peers, so c links to each need c (n - 1) of them. More than ``links_per_gpu`` (from the accelerator table;
    unknown: the most any GPU has) proves a switch. Unequal counts, or pairs without NVLink, exclude one.

    Example: 8 x NV18 needs 126 links, no GPU has them: a switch. 4 x NV2 needs 6 and no switched GPU has only 2
    links: a mesh. 2 x NV12 is a bridge or a switch: unknown.
    """
    pairs = topology.gpu_pairs()
    links = [topology.link(*pair) for pair in pairs]
    if any(link is None for link in links):
        return None
    counts = {link.nvlinks for link in links if link is not None}
    if not pairs or len(counts) != 1 or counts == {0}:
        return False
    count = counts.pop()
    if count * (len(topology.gpus) - 1) > (links_per_gpu or MOST_NVLINKS):
        return True
    if links_per_gpu is not None:
        return None if count == links_per_gpu else False
    return None if count in _LINKS_BEHIND_A_SWITCH else False


def parse_topology(text: str) -> Topology | Unavailable:
    """The first link matrix in ``text``; Unavailable says what the text is instead."""
    whole = _TORN_COUNT.sub("", text)  # a complete matrix ends in X or affinity: this may be NV1 of NV18
    lines = [_ESCAPE.sub("", line).rstrip("\r\n") for line in whole.splitlines()]
    blocks = [_Block.read(lines, number) for number, line in enumerate(lines) if _is_header(line)]
    links = [block for block in blocks if block.is_link_matrix()]
    if not links:
        return Unavailable(_what_it_is(text, lines, blocks))
    legend = {match[1]: match[2] for line in lines if (match := _NIC_LEGEND.match(line))}
    return links[0].topology(legend)


def _what_it_is(text: str, lines: list[str], blocks: list[_Block]) -> str:
    """Say what a text is that holds no matrix."""
    if not text.strip():
        return "the text is empty"
    if blocks:
        return "a matrix is there but it holds no links: `nvidia-smi topo -p2p` output? `nvidia-smi topo -m` is needed"
    if any(_GPU.fullmatch((line.split() or [""])[0]) for line in lines):
        return "the rows have no header line (GPU0 GPU1 ... CPU Affinity): the top of the output was cut off"
    return "no link matrix: a header line (GPU0 GPU1 ... CPU Affinity) was expected"


def _is_header(line: str) -> bool:
    """Return whether this is a header: GPUs first, no cell of a row; without affinity titles only words like devices."""
    devices = _AFFINITY.sub(" ", line).split()
    if not devices or not _GPU.fullmatch(devices[0]) or any(_is_cell(word) for word in devices):
        return False
    return bool(_AFFINITY.search(line)) or all(_DEVICE.fullmatch(name) for name in devices)


def _is_cell(word: str) -> bool:
    return word == "X" or word in _PEER_STATES or _parsed_link(word) is not None


@dataclass(frozen=True, slots=True)
class _Block:
    """A header and the rows below it."""

    columns: tuple[str, ...]
    affinity_titles: tuple[str, ...]
    rows: Mapping[str, str]  # device -> rest of the line
    strange: tuple[str, ...]

    @staticmethod
    def read(lines: list[str], at: int) -> _Block:
        """Return the block of a matrix that begins at this line."""
        titles = tuple(" ".join(match[0].split()) for match in _AFFINITY.finditer(lines[at]))
        columns = tuple(_AFFINITY.sub(" ", lines[at]).split())
        rows: dict[str, str] = {}
        strange: list[str] = []
        for line in lines[at + 1 :]:
            name, _, rest = line.strip().partition("\t") if "\t" in line.strip() else _first_word(line)
            name = name.strip()
            if not name:
                continue  # some pastes have an empty line between rows
            if name not in columns:
                if _DEVICE.fullmatch(name) and not name.endswith(":"):
                    strange.append(f"row {name} has no column in the header")
                    continue
                break
            if name in rows or _is_header(line):
                break  # the next matrix
            rows[name] = rest
        return _Block(columns, titles, rows, tuple(strange))

    def is_link_matrix(self) -> bool:
        """Return whether every first cell is X or a link; for a single GPU, whose only cell is X, affinity titles decide."""
        cells = [cell for rest in self.rows.values() for cell in rest.split()[: len(self.columns)]]
        links = [cell for cell in cells if _parsed_link(cell) is not None]
        peer_states = [cell for cell in cells if cell in _PEER_STATES]
        return bool(cells) and not peer_states and bool(links or self.affinity_titles)

    def topology(self, legend: Mapping[str, str]) -> Topology:
        """Return the devices and links of the block, with what is wrong in it."""
        problems = list(self.strange)
        links: dict[tuple[str, str], Link] = {}
        devices: list[Device] = []
        for name in self.columns:
            if name not in self.rows:
                problems.append(f"row {name} is missing: the text was cut off")
                devices.append(Device(name=name, is_gpu=bool(_GPU.fullmatch(name)), label=legend.get(name)))
                continue
            cells = self.rows[name].split()
            links |= self._links_of(name, cells[: len(self.columns)], problems)
            devices.append(self._device(name, self.rows[name], cells[len(self.columns) :], legend, problems))
        return Topology(devices=tuple(devices), links=_both_ways(links, problems), problems=tuple(problems))

    def _links_of(self, name: str, cells: list[str], problems: list[str]) -> dict[tuple[str, str], Link]:
        """Return the links of one row."""
        links: dict[tuple[str, str], Link] = {}
        if len(cells) < len(self.columns):
            problems.append(f"row {name} has {len(cells)} of {len(self.columns)} links: the text was cut off")
            cells = cells[:-1]  # the last one may be torn: NV1 of NV18
        for other, cell in zip(self.columns, cells, strict=False):
            if (cell == "X") != (other == name):
                problems.append(f"{name} to {other} reads {cell!r}: X belongs on the diagonal and only there")
            elif cell != "X":
                link = _parsed_link(cell)
                if link is None:
                    problems.append(f"{name} to {other} reads {cell!r}, which is not a link")
                else:
                    links[name, other] = link
        return links

    def _device(self, name: str, rest: str, cells: list[str], legend: Mapping[str, str], problems: list[str]) -> Device:
        """Return the device of one row, with its affinity where that can be told."""
        values = self._affinity(rest, cells)
        if values is None:
            problems.append(f"row {name}: the affinity columns cannot be separated: {' '.join(cells)!r}")
            values = {}
        read: dict[str, tuple[int, ...] | None] = {}
        for title, value in values.items():
            read[title] = _parsed_numbers(value)
            if read[title] is None and value not in ("", "N/A"):
                problems.append(f"row {name}: {title} reads {value!r}")
        return Device(
            name=name,
            is_gpu=bool(_GPU.fullmatch(name)),
            label=legend.get(name),
            cpu_affinity=read.get("CPU Affinity"),
            numa_affinity=read.get("NUMA Affinity"),
        )

    def _affinity(self, rest: str, cells: list[str]) -> dict[str, str] | None:
        """Return affinities, title -> value. Fewer values than titles are placed by their tabs, never by guessing."""
        titles = self.affinity_titles
        if not cells:
            return {}
        if len(cells) == len(titles):
            return dict(zip(titles, cells, strict=True))
        tabbed = [cell.strip() for cell in rest.split("\t")][len(self.columns) :]
        if len(cells) < len(titles) <= len(tabbed) and not any(tabbed[len(titles) :]):
            return dict(zip(titles, tabbed, strict=False))
        return None


def _first_word(line: str) -> tuple[str, str, str]:
    name, _, rest = line.strip().partition(" ")
    return name, " ", rest


def _parsed_link(cell: str) -> Link | None:
    nvlink = _NVLINK.fullmatch(cell)
    if nvlink:
        return Link(kind="NV", nvlinks=int(nvlink[1])) if int(nvlink[1]) else None
    kind = _OLD_NAMES.get(cell, cell)
    return Link(kind=kind) if kind in LINK_KINDS and kind != "NV" else None


def _both_ways(links: Mapping[tuple[str, str], Link], problems: list[str]) -> dict[tuple[str, str], Link]:
    """Fill in the symmetric matrix: a cell that was cut off from across the diagonal; where two differ, the slower."""
    full: dict[tuple[str, str], Link] = {}
    for (a, b), link in links.items():
        back = links.get((b, a), link)
        if back != link and (b, a) not in full:
            problems.append(f"{a} to {b} is {link.label} but {b} to {a} is {back.label}: the slower one is taken")
        full[a, b] = full[b, a] = max(link, back, key=lambda one: one.distance)
    return full


def _parsed_numbers(text: str) -> tuple[int, ...] | None:
    """Parse a list such as ``0-3,8`` into 0, 1, 2, 3, 8; None when it is no such list."""
    if not _LIST.fullmatch(text):
        return None
    numbers: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(numbers))
