"""Output of tools of the machine: what they say of devices, and the rates between devices that they measured.

``nvidia-smi``, ``nvidia-smi -q``, ``--query-gpu`` and ``topo -p2p``, ``ibstat``, ``ibstatus`` and ``ibv_devinfo``, perftest
(``ib_write_bw`` and its kin), ``nvbandwidth``, ``p2pBandwidthLatencyTest`` of the CUDA samples: several of them in one text,
and parts of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from stepscope.records.imported import Imported, MachineReading
from stepscope.store.importer import Candidate, Importer, head_of
from stepscope.store.log_lines import without_colours
from stepscope.store.text_signs import signs_beside

MAX_BYTES = 4 << 20
"""Most bytes that are read; ``nvidia-smi -q`` of 16 GPUs has 200 KB."""

_KNOWN = re.compile(
    r"BW Test|BW average\[|nvbandwidth Version|P2P=(?:En|Dis)abled Bandwidth|NVSMI LOG|Clocks (?:Throttle|Event) Reasons"
    r"|CA '[\w.-]+'|hca_id:\s|Physical state: \w|nfiniband device '[\w.-]+' port|Remapping Failure Occurred"
    r"|determine the device handle for|NVIDIA-SMI has failed|Failed to initialize NVML|\A\s*No devices were found"
    r"|(?m:^\s*GPU\d+(?=.*\sX\s)(?:[ \t]+(?:X|OK|CNS|GNS|TNS|NS|DR|U))+[ \t\r]*$)"
    r"|(?m:^(?:[a-z_.]+(?: \[\S+\])?, )*(?:clocks_\w+_reasons\.|ecc\.err|pcie\.link|remapped_|temperature\.gpu|power\.))"
    r"|\A(?:(?![|+]).*\n){0,4}\+-.*\n\| NVIDIA-SMI.*\n(?:[|+ ].*\n|\n){0,900}(?:(?![|+]).*\n?){0,9}\Z"
)
"""A plain ``nvidia-smi`` counts where it is all that there is: jobs print it before they begin."""

_PREFIX = re.compile(
    r"^(?:\d{4}-\d\d-\d\dT\S+ )?(?:\s*(?:\[[\d,]+\]<std\w+>:|([A-Za-z][\w.-]*\d|\d+)(?:: |:$| ?\| )(?=\s*\S|$)))?",
    re.MULTILINE,
)
_LINE = re.compile(
    r"""\s*(?:
    (?:CA\ '|(?P<verbs>hca_id):\s+)(?P<card>[\w.-]+)
    |GPU\ (?:[0-9A-Fa-f]{4,}:)?(?P<gpu>[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s*$
    |.*determine\ the\ device\ handle\ for\ (?:GPU\s?\d*:?\s*)?(?:[0-9A-Fa-f]{4,}:)?(?P<at>[0-9A-Fa-f:.]+):\ (?P<lost>.+)
    |(?P<driver>NVIDIA-SMI\ has\ failed.*|Failed\ to\ initialize\ NVML.*|No\ devices\ were\ found)
    |GPU(?P<row_of>\d+)(?P<peers>(?:\s+(?:X|OK|CNS|GNS|TNS|NS|DR|U))+)\s*$
    |(?:Infiniband\ device\ '(?P<of>[\w.-]+)'\ p|[Pp])ort:?\s+(?P<port>\d+)(?:\ status)?:?\s*$
    |(?P<perftest>(?:RDMA_\w+|Send|Atomic\w*)\ .*?BW)\ Test
    |.*BW\ average\[(?P<unit>\w+)/sec\]
    |(?P<p2p>(?:Uni|Bi)directional\ P2P=\w+\ Bandwidth.*?)\ Matrix
    |Running\ (?P<nvbandwidth>\w+)\.
    |(?P<other>.*(?:Latency|Connectivity).*Matrix)
    |.*[CG]PU\(row\)\ (?P<arrow><?->?)\ GPU\(column\)
    |\|\s+(?P<index>\d+)\s+(?P<name>\S.*?)\s+(?:On|Off|N/A)\s*\|\s*\S+\s+(?:On|Off|N/A)\s*\|\s*(?P<ecc>\S+)\s*\|
    |\|\s*\S+\s+(?P<celsius>\S+)\s+P\d+\s+\S+\s*/\s*(?P<watts>\S+)\s*\|[^|]*\|\s*(?P<use>\d+)%
    |Device:?\ (?P<number>\d+)[:,]\ (?P<model>.+?)(?:,\ pciBusID.*|\ \([0-9A-Fa-f:.]+\))?\s*$
    |Device=(?P<from>\d+)\ (?P<can>CAN|CANNOT)\ Access\ Peer\ Device=(?P<peer>\d+)
    |(?P<row>\d+)(?P<cells>(?:\s+(?:\d+\.\d+|N/A))+)\s*$
    |(?P<bytes>\d+)\s+\d+\s+[\d.]+\s+(?P<rate>\d+(?:\.\d+)?)(?:\s|$)
    |(?P<section>[A-Z][\w()\ /-]*?)\s*$
    )""",
    re.VERBOSE,
)
_FACT = re.compile(r"([A-Za-z][\w .()/*-]*?)\s*:\s+(?:\d+: )?(\S+(?: \S+)*)")
_SAME = {"phys state": "physical state", "phys_state": "physical state", "link_layer": "link layer"}
_VERBS_STATE = re.compile(r"(?:PORT_)?([A-Z_]+) \(\d\)")
_QUERIED = re.compile(r"(?:[a-z_.]+(?: \[\S+\])?, )+[a-z_.]+(?: \[\S+\])?")
_QUERY = {
    "name": "product name", "temperature.gpu": "gpu current temp", "power.limit": "power limit",
    "power.default_limit": "default power limit", "utilization.gpu": "utilization gpu",
    "pcie.link.width.current": "link width current", "pcie.link.width.max": "link width max",
    "pcie.link.gen.current": "pcie generation current", "pcie.link.gen.max": "pcie generation max",
    "ecc.errors.uncorrected.volatile.total": "volatile uncorr. ecc",
    "remapped_rows.failure": "remapped rows remapping failure occurred",
}  # fmt: skip
"""Field of ``nvidia-smi --query-gpu`` -> fact; others have the same words."""
_NO_PEER = ("CNS", "GNS", "TNS", "DR")
"""What ``topo -p2p`` says where P2P is not possible; NS may be of NVLink alone."""
_UNITS = {"Gb": 1e9 / 8, "GB": 1e9}


class _Readings:
    """Readings of one text, in its order. facts: of the device that the lines are about."""

    def __init__(self) -> None:
        self.all: list[MachineReading] = []
        self.facts: dict[str, str] = {}
        self.models: dict[str, str] = {}
        self.of_card: Mapping[str, str] = {}
        self.columns: list[str] = []
        self.tool = "ibstat"
        self.card = self.test = self.arrow = self.section = self.outer = ""
        self.unit = 0.0

    def add(self, tool: str, device: str, rate: float | None = None, **facts: str) -> None:
        self.all.append(MachineReading(tool=tool, device=device, facts=facts, test=self.test, bytes_per_s=rate))

    def about(self, tool: str, device: str, facts: Mapping[str, str]) -> None:
        self.facts, self.test = dict(facts), ""
        self.all.append(MachineReading(tool=tool, device=device, facts=self.facts))

    def take(self, line: str) -> None:
        """Read one line: of a query's table, of a matrix, or of a known form."""
        prefix = _PREFIX.match(line)
        host = prefix and prefix[1]
        of = f"{f'task {host}' if host.isdigit() else host} " if host else ""
        line = line[prefix.end() :] if prefix else line
        match = _LINE.match(line)
        kind = match.lastgroup if match else None
        if _QUERIED.fullmatch(line.strip()):
            self.columns = [field.split(" [")[0] for field in line.strip().split(", ")]
        elif self.columns and len(cells := line.strip().split(", ")) == len(self.columns):
            self.take_queried(dict(zip(self.columns, cells, strict=True)), of)
        elif match is None or kind is None:
            self.take_facts(line)
        else:
            self.take_form(kind, match, of)

    def take_queried(self, cells: Mapping[str, str], of: str) -> None:
        """A row of ``--query-gpu``; of a GPU that is asked again, what is active at any time."""
        name = next((cells[field] for field in ("index", "pci.bus_id", "gpu_bus_id", "uuid") if field in cells), "")
        facts = {
            _QUERY.get(field, re.sub(r"^clocks_\w+_reasons\.", "", field).replace("_", " ").replace(".", " ")): value
            for field, value in cells.items()
        }
        device = f"{of}GPU {name}".strip()
        for reading in self.all:
            if reading.device == device and isinstance(reading.facts, dict):
                reading.facts.update({fact: value for fact, value in facts.items() if value == "Active"})
                return
        self.about("nvidia-smi", device, facts)

    def take_facts(self, line: str) -> None:
        for title, value in _FACT.findall(line):
            name = _SAME.get(title.lower(), title.lower())
            state = _VERBS_STATE.fullmatch(value)
            self.facts.setdefault(name, state[1].replace("_", "") if state else value)
            self.facts.setdefault(f"{self.section} {name}", value)

    def take_form(self, kind: str, match: re.Match[str], of: str) -> None:
        """Read a line of a known form: a section, a card, a port or a fact."""
        value = match[kind]
        if kind == "section":
            self.section = section = value.lower()
            if section in ("volatile", "aggregate"):
                self.outer = section
            elif section in ("single bit", "double bit"):
                self.section = f"{self.outer} {section}"
        elif kind == "card":
            self.card, self.facts = of + value, {}
            self.tool = "ibv_devinfo" if match["verbs"] else "ibstat"
            self.of_card = self.facts
        elif kind == "port":
            self.about(
                self.tool, f"{of + match['of'] if match['of'] else self.card} port {value}".strip(), self.of_card
            )
        elif kind == "gpu":
            self.about("nvidia-smi", f"{of}GPU {value}", {})
        elif kind == "lost":
            self.about("nvidia-smi", f"{of}GPU {match['at']}", {"device handle": value})
        elif kind == "driver":
            self.about("nvidia-smi", f"{of}host".replace(" host", ""), {"driver": value})
        elif kind == "peers":
            for column, state in enumerate(value.split()):
                if state == "OK" or state in _NO_PEER:
                    peer = "CAN" if state == "OK" else "CANNOT"
                    self.add(
                        "nvidia-smi topo -p2p", f"{of}GPU {match['row_of']} -> GPU {column}", peer=peer, status=state
                    )
        elif kind == "ecc":
            about = {"product name": match["name"], "volatile uncorr. ecc": value}
            self.about("nvidia-smi", f"{of}GPU {match['index']}", about)
        elif kind == "use":
            used = {"gpu current temp": match["celsius"], "power limit": match["watts"], "utilization gpu": value}
            self.facts.update(used)
        elif kind == "unit":
            self.unit = _UNITS.get(value, float(1 << 20))
        elif kind in ("perftest", "p2p", "nvbandwidth", "other"):
            self.test, self.arrow, self.facts = "" if kind == "other" else value, "->", {}
        elif kind == "arrow":
            self.arrow = value
        elif kind == "model":
            self.models[match["number"]] = value
        elif kind == "peer":
            self.add("p2pBandwidthLatencyTest", f"GPU {match['from']} -> GPU {value}", peer=match["can"])
        elif kind == "rate" and self.unit:
            adapter = {name: self.facts[name] for name in ("dual-port", "link type") if name in self.facts}
            name = of + self.facts.get("device", "the adapter")
            self.add("perftest", name, float(value) * self.unit, bytes=match["bytes"], **adapter)
        elif kind == "cells" and self.test:
            self.take_row(match["row"], value.split(), of)

    def take_row(self, row: str, cells: list[str], of: str) -> None:
        """Read a row of bandwidths, GB/s, between devices."""
        tool = "p2pBandwidthLatencyTest" if "P2P=" in self.test else "nvbandwidth"
        first = "host" if "host" in self.test else f"GPU {row}"
        for column, cell in enumerate(cells):
            ends = [first, f"GPU {column}"]
            if cell != "N/A" and first != ends[1]:
                model = {"model": self.models[str(column)]} if str(column) in self.models else {}
                self.add(tool, of + " -> ".join(ends[::-1] if self.arrow == "<-" else ends), float(cell) * 1e9, **model)


def _recognises_readings(candidate: Candidate) -> bool:
    return _KNOWN.search(candidate.text) is not None or _KNOWN.search(_PREFIX.sub("", candidate.text)) is not None


def _read_readings(source: Candidate) -> Imported:
    """Read what tools say of a machine, of every file."""
    all_readings: list[MachineReading] = []
    for path in source.files:
        readings = _Readings()
        for line in without_colours(head_of(path, MAX_BYTES)).decode(errors="replace").splitlines():
            readings.take(line)
        if not readings.all:
            of_port = "state" in readings.facts
            readings.about(*(("ibstat", "the port") if of_port else ("nvidia-smi", "the GPU")), readings.facts)
        all_readings += [reading for reading in readings.all if reading.facts or reading.bytes_per_s]
    return Imported(
        format="machine_text", path=str(source.path), readings=tuple(all_readings), signs=signs_beside(source.files)
    )


IMPORTER = Importer(
    title="output of nvidia-smi, ibstat, perftest, nvbandwidth, p2pBandwidthLatencyTest",
    recognises=_recognises_readings,
    read_files=_read_readings,
    rank=92,
    marks=(
        "BW Test", "BW average[", "nvbandwidth Version", "P2P=", "NVSMI LOG", "NVIDIA-SMI", " Reasons", "CA '",
        "Physical state: ", "nfiniband device '", "Remapping Failure Occurred", "hca_id:", "determine the device handle",
        "initialize NVML", "No devices were found", "temperature.gpu", "clocks_", "ecc.errors.", "pcie.link.", "power.",
        "CNS", "GPU0",
    ),
)  # fmt: skip
