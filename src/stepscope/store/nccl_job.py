"""Who says what in NCCL's debug log: each line of it goes to its process and communicator."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from stepscope.store.nccl_members import (
    Choice,
    NcclMember,
    ParsedLine,
    Process,
    Way,
    by_pointer,
    connected,
    identity,
    merge_way,
    unstated,
)

SIZES_KEPT = 2000
"""Sizes with a line of their own for each communicator; further ones are counted by powers of two."""

MEMBERS_KEPT = 100_000
"""Members (communicators times ranks) that are kept; whatever a job opens beyond is counted alone."""

_NET = re.compile(r"(NET/[^/]+)/(-?\d{1,9})(?:\((\d{1,9})\))?(/GDRDMA(?:\(\w+\))?)?(?:/Shared)?$")
_NEAR = re.compile(
    r"(?:(?:P2P|SHM)(?:/(?:IPC|CUMEM|MNNVL|CE|read|direct pointer|direct|indirect|intermediate|\d{1,9}\[\w+\]))*"
    r"|direct shared memory)$"
)
_THROUGH = re.compile(r"/\d{1,9}\[\w+\]")
_TREE = re.compile(r"\[(\d{1,4})\] ([-\d/>]+)")
_NIC = re.compile(r"\[\d{1,9}\](\S+)")
_RESIDUE = re.compile(r"-?\d[\d.]*")

_ALGORITHMS = ("Tree", "Ring", "CollnetDirect", "CollnetChain", "NVLS", "NVLSTree", "PAT")
_PROTOCOLS = ("LL", "LL128", "Simple")
"""Names in the order of NCCL's numbers (2.21 to 2.23 print those), spelled as NCCL_ALGO and NCCL_PROTO take them."""


_Handler = Callable[["_Line"], None]
_KINDS: list[tuple[str, re.Pattern[str], _Handler]] = []
"""Kinds of lines in the order in which they are tried; what every call prints comes first."""


def _reading_lines(marker: str, pattern: str) -> Callable[[_Handler], _Handler]:
    """Give a handler the lines that hold the marker and fit the pattern. Numbers are bounded: some lines are damaged."""

    def kept(handler: _Handler) -> _Handler:
        _KINDS.append((marker, re.compile(pattern), handler))
        return handler

    return kept


@dataclass(kw_only=True, slots=True)
class Message:
    """A warning or returned error, by place."""

    text: str
    device: int
    count: int = 0


class NcclJob:
    """All processes of all files, and what their lines say of hosts and plugins."""

    def __init__(self) -> None:
        self.processes: dict[tuple[int, str, int], Process] = {}
        self.messages: dict[tuple[Process, str, int, str], Message] = {}
        self.plugins: dict[str, None] = {}
        self.no_plugin: dict[str, None] = {}
        self.settings: dict[tuple[str, str], None] = {}
        self.nics: dict[str, dict[str, None]] = {}
        self.gdr: dict[str, dict[str, bool]] = {}
        self.unread_links = 0
        self.unread_link = ""  # the first of them
        self.members_dropped = 0
        self.torn = 0  # lines that contradict themselves
        self.several = False  # a process has several communicators: which of them it calls matters
        self._members = 0
        self._by_pid: dict[tuple[int, int], list[Process]] = {}

    def add(self, file: int, parsed: ParsedLine) -> None:
        """Take in one line."""
        process = self.process(file, parsed)
        if parsed.warning:
            self.message("warning", process, parsed.place, parsed)
            return
        for marker, pattern, handler in _KINDS:
            if marker in parsed.text and (match := pattern.search(parsed.text)):
                handler(_Line(self, process, parsed, match))
                return

    def listens_to(self, line: bytes) -> bool:
        """Return whether anything is read from such a line, by its raw bytes: most lines tell nothing."""
        if _CALL in line:
            return self.several
        return _TELLING.search(line) is not None

    def process(self, file: int, parsed: ParsedLine) -> Process:
        """Return who speaks. Other output right before a line looks like a part of the host's name: it is taken off."""
        recorded = self.processes.get((file, parsed.host, parsed.pid))
        if recorded is not None:
            return recorded
        same_pid = self._by_pid.setdefault((file, parsed.pid), [])
        for process in same_pid:
            if _with_residue(parsed.host, process.host, anything=parsed.glued):
                return process
            if _with_residue(process.host, parsed.host, anything=process.glued):
                del self.processes[file, process.host, parsed.pid]
                process.host, process.glued = parsed.host, parsed.glued
                self.processes[file, parsed.host, parsed.pid] = process
                return process
        new = Process(file=file, host=parsed.host, pid=parsed.pid, glued=parsed.glued)
        self.processes[file, parsed.host, parsed.pid] = new
        same_pid.append(new)
        return new

    def message(self, kind: str, process: Process, place: str, parsed: ParsedLine) -> None:
        key = process, kind, parsed.device, place
        self.messages.setdefault(key, Message(text=parsed.text, device=parsed.device)).count += 1

    def new_member(self, process: Process) -> NcclMember:
        """Return a new member of a process; beyond the most that are kept it is only counted."""
        member = NcclMember(process=process)
        if self._members < MEMBERS_KEPT:
            self._members += 1
            process.members.append(member)
            self.several = self.several or len(process.members) > 1
        else:
            self.members_dropped += 1
        return member

    def _name_host(self, process: Process) -> None:
        """Give a process whose line was torn the host of another process of the same file that fits."""
        hosts = {other.host for other in self.processes.values() if not other.glued and other.file == process.file}
        fitting = [
            h
            for h in hosts
            if _with_residue(process.host, h, anything=process.glued) and (process.glued or h[0].isalpha())
        ]
        if not fitting:
            return
        del self.processes[process.file, process.host, process.pid]
        process.host, process.glued = max(fitting, key=len), False
        recorded = self.processes.setdefault((process.file, process.host, process.pid), process)
        if recorded is not process:
            recorded.members += process.members
            for member in process.members:
                member.process = recorded

    def settle(self) -> None:
        """Give, at the end, what stood under initialisations that were never named to the communicators it fits.

        A process that spoke behind other output only is of the host whose name its own ends in.
        """
        for process in list(self.processes.values()):
            self._name_host(process)
        for process in self.processes.values():
            for member in [m for m in process.members if m.rank is None]:
                process.members.remove(member)
                for (source, destination, transport), way in member.ways.items():
                    to = connected(process, own=source, other=destination, device=None)
                    to = to or connected(process, own=destination, other=source, device=None)
                    merge_way((to or unstated(process)).ways, (source, destination, transport), way)
                member.ways = {}
                if not member.empty:
                    rest = unstated(process)
                    rest.rings |= member.rings
                    rest.channels = rest.channels or member.channels


@dataclass(slots=True)
class _Line:
    """A line of NCCL's that fits one of its kinds."""

    job: NcclJob
    process: Process
    parsed: ParsedLine
    match: re.Match[str]

    # Lines about a communicator, each line by the thread that initialises it or by one that connects it later.

    @_reading_lines("opCount ", r"^(?:.* comm )?([^ ]*)")
    def _called(self) -> None:
        if len(self.process.members) > 1:
            self.process.called[self.parsed.tid] = self.match[1]

    @_reading_lines(
        " Bytes -> Algo ",
        r"^(?:(\w+): )?(\d{1,19}) Bytes -> Algo (\w+) proto (\w+)"
        r"(?: channel\{Lo\.\.Hi\}=\{(\d{1,9})\.\.(\d{1,9})\}| time [\d.]+)$",
    )
    def _choice(self) -> None:
        """Add the choice of algorithm and protocol for a size; of very many sizes, by powers of two."""
        choice = _choice_of(*self.match.groups())
        member = self._chooser()
        if choice not in member.choices and len(member.choices) >= SIZES_KEPT:
            bits = max(choice.low_bytes.bit_length() - 1, 0)
            choice = choice._replace(low_bytes=1 << bits, high_bytes=(2 << bits) - 1, channels=None)
        member.choices[choice] = member.choices.get(choice, 0) + 1

    @_reading_lines(
        " via ",
        r"(?:Channel|Ring) (\d{1,4})(?:/\d{1,9})? ?: (\d{1,9})(?:\[\w+\])? -> (\d{1,9})(?:\[\w+\])?(?: \[(send|receive)\])?"
        r" via (.+?)(?: comm (0x[0-9a-f]+) nRanks \d{1,9})?$",
    )
    def _link(self) -> None:
        """Add a link to the way between two ranks; one of an unknown form is counted."""
        channel, source, destination, end, via, pointer = self.match.groups()
        net = _NET.match(via)
        if net is None and not _NEAR.match(via):
            self.job.unread_links += 1
            self.job.unread_link = self.job.unread_link or via
            return
        transport = net[1] if net else _THROUGH.sub("", via)
        own, other = (destination, source) if end == "receive" else (source, destination)
        member = by_pointer(self.process, pointer) if pointer else None
        member = member or self._speaking(own=int(own), other=int(other))
        way = member.ways.setdefault((int(source), int(destination), transport), Way())
        way.channels |= 1 << int(channel)
        if net is not None:
            (way.receive_nics if end == "receive" else way.send_nics).add(int(net[2]))
            way.gdrdma = net[4] is not None and way.gdrdma is not False
            way.proxy_rank = way.proxy_rank if net[3] is None else int(net[3])

    @_reading_lines(" via ", r"^CollNet \d{1,9}(?:/\d{1,9})? ?: \d{1,9} \[(?:send|receive)\] via (COLLNET/[^/]+)")
    def _collnet(self) -> None:
        member = self.process.beginning.get(self.parsed.tid)
        if member is not None and self.match[1] not in member.networks:
            member.networks.append(self.match[1])

    @_reading_lines(
        "- Init ",
        r"comm (0x[0-9a-f]+) rank (\d{1,6}) n[rR]anks (\d{1,6}) cudaDev (-?\d{1,9})(?: nvmlDev (-?\d{1,9}))?"
        r"(?: busId ([0-9a-f]+))?(.*?) ?- Init (START|COMPLETE)$",
    )
    def _init(self) -> None:
        """Begin, or complete, a communicator of a rank."""
        pointer, rank, nranks, cuda, nvml, bus, rest, stage = self.match.groups()
        if int(cuda) != self.parsed.device or int(rank) >= int(nranks):
            self.job.torn += 1  # two lines that look like one: a device says so of itself
            return
        member = self.process.beginning.get(self.parsed.tid)
        if stage == "START":
            self.process.states_starts = True
            member = self.job.new_member(self.process)
            self.process.beginning[self.parsed.tid] = member
        elif member is None or member.pointer not in (None, pointer):
            member = by_pointer(self.process, pointer) or self.job.new_member(self.process)
        member.pointer, member.rank, member.nranks = pointer, int(rank), int(nranks)
        member.cuda_device = int(cuda)
        member.nvml_device = None if nvml is None else int(nvml)
        member.bus_id = bus
        if member.key is None:
            member.key = identity(self.process, member, rest)
        member.networks += self.process.networks.pop(self.parsed.tid, [])
        if stage == "COMPLETE":
            member.initialised = True
            self.process.beginning.pop(self.parsed.tid, None)

    @_reading_lines(" COMPLETE", r"comm (0x[0-9a-f]+) rank \d{1,9} .*(Destroy|Abort) COMPLETE$")
    def _ended(self) -> None:
        if (member := by_pointer(self.process, self.match[1])) is not None:
            member.ended = "destroyed" if self.match[2] == "Destroy" else "aborted"

    @_reading_lines(
        " coll channels",
        r"(\d{1,9}) coll channels,(?: (\d{1,9}) collnet channels,)?(?: (\d{1,9}) nvls channels,)? (\d{1,9}) p2p channels, "
        r"(\d{1,9}) p2p channels per peer$",
    )
    def _channels(self) -> None:
        counts = tuple(None if n is None else int(n) for n in self.match.groups())
        self._initialising().channels = counts

    @_reading_lines("Channel ", r"^Channel (\d{1,4})(?:/\d{1,9})? ?:((?:\s+\d{1,9})+)$")
    def _ring(self) -> None:
        order = tuple(int(r) for r in self.match[2].split())
        self._initialising().rings[int(self.match[1])] = order

    @_reading_lines("Trees ", r"Trees ")
    def _trees(self) -> None:
        """Add the parent in each channel's tree."""
        member = self._initialising()
        for channel, drawn in _TREE.findall(self.parsed.text):
            # Before NCCL 2.8 a second tree follows, the first one mirrored.
            ends = drawn.partition("|")[0].split("->")
            if len(ends) == 3:
                parent = ends[0] if "/" in ends[2] else ends[2]
                if re.fullmatch(r"-?\d{1,6}", parent):
                    member.parents[int(channel)] = int(parent)

    @_reading_lines(" nNodes ", r"comm (0x[0-9a-f]+) rank \d{1,9} nRanks \d{1,9} nNodes (\d{1,9}) ")
    def _nodes(self) -> None:
        if (member := by_pointer(self.process, self.match[1])) is not None:
            member.nodes = int(self.match[2])

    @_reading_lines("NVLS multicast support", r"^NVLS multicast support is (not )?available on dev (\d{1,9})")
    def _nvls(self) -> None:
        self._initialising().nvls = self.match[1] is None

    # Lines about the process, its host and its surroundings.

    @_reading_lines("Using network ", r"^(?:Using network|Assigned NET plugin) (.+?)(?: to comm)?$")
    @_reading_lines("Assigned NET plugin ", r"^(?:Using network|Assigned NET plugin) (.+?)(?: to comm)?$")
    def _network(self) -> None:
        member = self.process.beginning.get(self.parsed.tid)
        networks = member.networks if member is not None else self.process.networks.setdefault(self.parsed.tid, [])
        if self.match[1] not in networks:
            networks.append(self.match[1])

    @_reading_lines("CCL version", r"^[NR]CCL version\s*:?\s*(\d\S*)(?:\s+\S+:\S+)?$")
    def _version(self) -> None:
        self.process.versions[self.match[1]] = None

    @_reading_lines("set by environment", r"(\w+) set by environment to (.*?)\.?$")
    def _setting(self) -> None:
        self.job.settings[self.match[1], self.match[2]] = None

    @_reading_lines("NET/Plugin", r"^NET/Plugin ?: Loaded net plugin (.+)$")
    def _plugin(self) -> None:
        self.job.plugins[self.match[1]] = None

    @_reading_lines("NET/Plugin", r"^NET/Plugin ?: ((?:No plugin found|Could not find).*)$")
    def _no_plugin(self) -> None:
        self.job.no_plugin[self.match[1].strip()] = None

    @_reading_lines("Using [", r"^NET/[^:]+: Using (\[\d{1,9}\].+?)(?: ?\[RO\])?(?:; OOB .*)?$")
    def _nics(self) -> None:
        self.job.nics.setdefault(self.process.host, {}).update(dict.fromkeys(_NIC.findall(self.match[1])))

    @_reading_lines("GPU Direct RDMA ", r"GPU Direct RDMA (Enabled|Disabled) for HCA \d{1,9} '([^']+)'")
    def _gdr(self) -> None:
        self.job.gdr.setdefault(self.process.host, {})[self.match[2]] = self.match[1] == "Enabled"

    @_reading_lines(" -> ", r"^(\S+:\d{1,9}) -> (\d{1,9})(?: |$)")
    def _returned(self) -> None:
        if int(self.match[2]) > 0:
            self.job.message("returned", self.process, self.match[1], self.parsed)

    # Whose line it is.

    def _initialising(self) -> NcclMember:
        """Return the communicator that the thread is about to open; before NCCL 2.18 its name comes last."""
        member = self.process.beginning.get(self.parsed.tid)
        if member is None and not self.process.states_starts:
            member = self.process.beginning[self.parsed.tid] = self.job.new_member(self.process)
        return member or unstated(self.process)

    def _speaking(self, *, own: int, other: int) -> NcclMember:
        if self.parsed.tid in self.process.beginning or not self.process.states_starts:
            return self._initialising()
        return connected(self.process, own=own, other=other, device=self.parsed.device) or unstated(self.process)

    def _chooser(self) -> NcclMember:
        """Return the communicator of a choice: rank 0 alone prints choices, without naming the communicator."""
        fitting = [m for m in self.process.members if m.rank == 0 and m.ended is None]
        if len(fitting) > 1:
            latest = self.process.called.get(self.parsed.tid)
            fitting = [m for m in fitting if m.pointer == latest]
        return fitting[0] if len(fitting) == 1 else unstated(self.process)


@lru_cache(maxsize=4096)
def _choice_of(op: str | None, size: str, algorithm: str, protocol: str, low: str | None, high: str) -> Choice:
    """Return a choice as NCCL prints it, with its names spelled out."""
    return Choice(
        op=op,
        low_bytes=int(size),
        high_bytes=int(size),
        algorithm=_spelled_name(algorithm, _ALGORITHMS),
        protocol=_spelled_name(protocol, _PROTOCOLS),
        channels=None if low is None else (int(low), int(high)),
    )


def _with_residue(longer: str, shorter: str, *, anything: bool) -> bool:
    """Return whether ``longer`` is ``shorter`` behind the end of other output: a number, or anything inside a line."""
    residue = longer.removesuffix(shorter)
    return bool(residue) and residue != longer and (anything or _RESIDUE.fullmatch(residue) is not None)


def _spelled_name(text: str, names: tuple[str, ...]) -> str:
    if text.isdecimal():
        return names[int(text)] if len(text) == 1 and int(text) < len(names) else text
    plain = text.replace("_", "").lower()
    return next((n for n in names if n.lower() == plain), text)


_CALL = b"opCount "
_TELLING = re.compile(
    rb"NCCL (?:WARN |INFO (?:Channel |Ring |CollNet |Trees |comm 0x|(?:\[Rank \d+\] )?nccl\w+ comm |NVLS multicast |"
    rb"Using network |Assigned NET |.CCL version|\w+ set by |NET/|GPU Direct |\d+ coll |"
    rb"(?:\w+: )?\d+ Bytes -> Algo |\S+:\d+ -> \d))"
)
"""Markers of the lines that have a handler, all but those of single calls."""
