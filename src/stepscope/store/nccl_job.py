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


_Handler = Callable[["NcclJob", Process, ParsedLine, re.Match[str]], None]
_KINDS: list[tuple[str, re.Pattern[str], _Handler]] = []
"""Kinds of lines in the order in which they are tried; what every call prints comes first."""


def _reads(marker: str, pattern: str) -> Callable[[_Handler], _Handler]:
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
            self._message("warning", process, parsed.place, parsed)
            return
        for marker, pattern, handler in _KINDS:
            if marker in parsed.text and (match := pattern.search(parsed.text)):
                handler(self, process, parsed, match)
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

    # Lines about a communicator, each line by the thread that initialises it or by one that connects it later.

    @_reads("opCount ", r"^(?:.* comm )?([^ ]*)")
    def _called(self, process: Process, parsed: ParsedLine, match: re.Match[str]) -> None:
        if len(process.members) > 1:
            process.called[parsed.tid] = match[1]

    @_reads(
        " Bytes -> Algo ",
        r"^(?:(\w+): )?(\d{1,19}) Bytes -> Algo (\w+) proto (\w+)"
        r"(?: channel\{Lo\.\.Hi\}=\{(\d{1,9})\.\.(\d{1,9})\}| time [\d.]+)$",
    )
    def _choice(self, process: Process, parsed: ParsedLine, match: re.Match[str]) -> None:
        choice = _choice_of(*match.groups())
        member = self._chooser(process, parsed)
        if choice not in member.choices and len(member.choices) >= SIZES_KEPT:
            bits = max(choice.low_bytes.bit_length() - 1, 0)
            choice = choice._replace(low_bytes=1 << bits, high_bytes=(2 << bits) - 1, channels=None)
        member.choices[choice] = member.choices.get(choice, 0) + 1

    @_reads(
        " via ",
        r"(?:Channel|Ring) (\d{1,4})(?:/\d{1,9})? ?: (\d{1,9})(?:\[\w+\])? -> (\d{1,9})(?:\[\w+\])?(?: \[(send|receive)\])?"
        r" via (.+?)(?: comm (0x[0-9a-f]+) nRanks \d{1,9})?$",
    )
    def _link(self, process: Process, parsed: ParsedLine, match: re.Match[str]) -> None:
        channel, source, destination, end, via, pointer = match.groups()
        net = _NET.match(via)
        if net is None and not _NEAR.match(via):
            self.unread_links += 1
            self.unread_link = self.unread_link or via
            return
        transport = net[1] if net else _THROUGH.sub("", via)
        own, other = (destination, source) if end == "receive" else (source, destination)
        member = by_pointer(process, pointer) if pointer else None
        member = member or self._speaking(process, parsed, own=int(own), other=int(other))
        way = member.ways.setdefault((int(source), int(destination), transport), Way())
        way.channels |= 1 << int(channel)
        if net is not None:
            (way.receive_nics if end == "receive" else way.send_nics).add(int(net[2]))
            way.gdrdma = net[4] is not None and way.gdrdma is not False
            way.proxy_rank = way.proxy_rank if net[3] is None else int(net[3])

    @_reads(" via ", r"^CollNet \d{1,9}(?:/\d{1,9})? ?: \d{1,9} \[(?:send|receive)\] via (COLLNET/[^/]+)")
    def _collnet(self, process: Process, parsed: ParsedLine, match: re.Match[str]) -> None:
        member = process.beginning.get(parsed.tid)
        if member is not None and match[1] not in member.networks:
            member.networks.append(match[1])

    @_reads(
        "- Init ",
        r"comm (0x[0-9a-f]+) rank (\d{1,6}) n[rR]anks (\d{1,6}) cudaDev (-?\d{1,9})(?: nvmlDev (-?\d{1,9}))?"
        r"(?: busId ([0-9a-f]+))?(.*?) ?- Init (START|COMPLETE)$",
    )
    def _init(self, process: Process, parsed: ParsedLine, match: re.Match[str]) -> None:
        pointer, rank, nranks, cuda, nvml, bus, rest, stage = match.groups()
        if int(cuda) != parsed.device or int(rank) >= int(nranks):
            self.torn += 1  # two lines that look like one: a device says so of itself
            return
        member = process.beginning.get(parsed.tid)
        if stage == "START":
            process.states_starts = True
            member = self._new_member(process)
            process.beginning[parsed.tid] = member
        elif member is None or member.pointer not in (None, pointer):
            member = by_pointer(process, pointer) or self._new_member(process)
        member.pointer, member.rank, member.nranks = pointer, int(rank), int(nranks)
        member.cuda_device = int(cuda)
        member.nvml_device = None if nvml is None else int(nvml)
        member.bus_id = bus
        if member.key is None:
            member.key = identity(process, member, rest)
        member.networks += process.networks.pop(parsed.tid, [])
        if stage == "COMPLETE":
            member.initialised = True
            process.beginning.pop(parsed.tid, None)

    @_reads(" COMPLETE", r"comm (0x[0-9a-f]+) rank \d{1,9} .*(Destroy|Abort) COMPLETE$")
    def _ended(self, process: Process, _parsed: ParsedLine, match: re.Match[str]) -> None:
        if (member := by_pointer(process, match[1])) is not None:
            member.ended = "destroyed" if match[2] == "Destroy" else "aborted"

    @_reads(
        " coll channels",
        r"(\d{1,9}) coll channels,(?: (\d{1,9}) collnet channels,)?(?: (\d{1,9}) nvls channels,)? (\d{1,9}) p2p channels, "
        r"(\d{1,9}) p2p channels per peer$",
    )
    def _channels(self, process: Process, parsed: ParsedLine, match: re.Match[str]) -> None:
        counts = tuple(None if n is None else int(n) for n in match.groups())
        self._initialising(process, parsed).channels = counts

    @_reads("Channel ", r"^Channel (\d{1,4})(?:/\d{1,9})? ?:((?:\s+\d{1,9})+)$")
    def _ring(self, process: Process, parsed: ParsedLine, match: re.Match[str]) -> None:
        order = tuple(int(r) for r in match[2].split())
        self._initialising(process, parsed).rings[int(match[1])] = order

    @_reads("Trees ", r"Trees ")
    def _trees(self, process: Process, parsed: ParsedLine, _match: re.Match[str]) -> None:
        member = self._initialising(process, parsed)
        for channel, drawn in _TREE.findall(parsed.text):
            # Before NCCL 2.8 a second tree follows, the first one mirrored.
            ends = drawn.partition("|")[0].split("->")
            if len(ends) == 3:
                parent = ends[0] if "/" in ends[2] else ends[2]
                if re.fullmatch(r"-?\d{1,6}", parent):
                    member.parents[int(channel)] = int(parent)

    @_reads(" nNodes ", r"comm (0x[0-9a-f]+) rank \d{1,9} nRanks \d{1,9} nNodes (\d{1,9}) ")
    def _nodes(self, process: Process, _parsed: ParsedLine, match: re.Match[str]) -> None:
        if (member := by_pointer(process, match[1])) is not None:
            member.nodes = int(match[2])

    @_reads("NVLS multicast support", r"^NVLS multicast support is (not )?available on dev (\d{1,9})")
    def _nvls(self, process: Process, parsed: ParsedLine, match: re.Match[str]) -> None:
        self._initialising(process, parsed).nvls = match[1] is None

    # Lines about the process, its host and its surroundings.

    @_reads("Using network ", r"^(?:Using network|Assigned NET plugin) (.+?)(?: to comm)?$")
    @_reads("Assigned NET plugin ", r"^(?:Using network|Assigned NET plugin) (.+?)(?: to comm)?$")
    def _network(self, process: Process, parsed: ParsedLine, match: re.Match[str]) -> None:
        member = process.beginning.get(parsed.tid)
        networks = member.networks if member is not None else process.networks.setdefault(parsed.tid, [])
        if match[1] not in networks:
            networks.append(match[1])

    @_reads("CCL version", r"^[NR]CCL version\s*:?\s*(\d\S*)(?:\s+\S+:\S+)?$")
    def _version(self, process: Process, _parsed: ParsedLine, match: re.Match[str]) -> None:
        process.versions[match[1]] = None

    @_reads("set by environment", r"(\w+) set by environment to (.*?)\.?$")
    def _setting(self, _: Process, _parsed: ParsedLine, match: re.Match[str]) -> None:
        self.settings[match[1], match[2]] = None

    @_reads("NET/Plugin", r"^NET/Plugin ?: Loaded net plugin (.+)$")
    def _plugin(self, _: Process, _parsed: ParsedLine, match: re.Match[str]) -> None:
        self.plugins[match[1]] = None

    @_reads("NET/Plugin", r"^NET/Plugin ?: ((?:No plugin found|Could not find).*)$")
    def _no_plugin(self, _: Process, _parsed: ParsedLine, match: re.Match[str]) -> None:
        self.no_plugin[match[1].strip()] = None

    @_reads("Using [", r"^NET/[^:]+: Using (\[\d{1,9}\].+?)(?: ?\[RO\])?(?:; OOB .*)?$")
    def _nics(self, process: Process, _parsed: ParsedLine, match: re.Match[str]) -> None:
        self.nics.setdefault(process.host, {}).update(dict.fromkeys(_NIC.findall(match[1])))

    @_reads("GPU Direct RDMA ", r"GPU Direct RDMA (Enabled|Disabled) for HCA \d{1,9} '([^']+)'")
    def _gdr(self, process: Process, _parsed: ParsedLine, match: re.Match[str]) -> None:
        self.gdr.setdefault(process.host, {})[match[2]] = match[1] == "Enabled"

    @_reads(" -> ", r"^(\S+:\d{1,9}) -> (\d{1,9})(?: |$)")
    def _returned(self, process: Process, parsed: ParsedLine, match: re.Match[str]) -> None:
        if int(match[2]) > 0:
            self._message("returned", process, match[1], parsed)

    def _message(self, kind: str, process: Process, place: str, parsed: ParsedLine) -> None:
        key = process, kind, parsed.device, place
        self.messages.setdefault(key, Message(text=parsed.text, device=parsed.device)).count += 1

    # Whose line it is.

    def _new_member(self, process: Process) -> NcclMember:
        member = NcclMember(process=process)
        if self._members < MEMBERS_KEPT:
            self._members += 1
            process.members.append(member)
            self.several = self.several or len(process.members) > 1
        else:
            self.members_dropped += 1
        return member

    def _initialising(self, process: Process, parsed: ParsedLine) -> NcclMember:
        """Return the communicator that the thread is about to open; before NCCL 2.18 its name comes last."""
        member = process.beginning.get(parsed.tid)
        if member is None and not process.states_starts:
            member = process.beginning[parsed.tid] = self._new_member(process)
        return member or unstated(process)

    def _speaking(self, process: Process, parsed: ParsedLine, *, own: int, other: int) -> NcclMember:
        if parsed.tid in process.beginning or not process.states_starts:
            return self._initialising(process, parsed)
        return connected(process, own=own, other=other, device=parsed.device) or unstated(process)

    def _chooser(self, process: Process, parsed: ParsedLine) -> NcclMember:
        """Return the communicator of a choice: rank 0 alone prints choices, without naming the communicator."""
        fitting = [m for m in process.members if m.rank == 0 and m.ended is None]
        if len(fitting) > 1:
            latest = process.called.get(parsed.tid)
            fitting = [m for m in fitting if m.pointer == latest]
        return fitting[0] if len(fitting) == 1 else unstated(process)

    def _name_host(self, process: Process) -> None:
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


@lru_cache(maxsize=4096)
def _choice_of(op: str | None, size: str, algorithm: str, protocol: str, low: str | None, high: str) -> Choice:
    return Choice(
        op=op,
        low_bytes=int(size),
        high_bytes=int(size),
        algorithm=_spelled(algorithm, _ALGORITHMS),
        protocol=_spelled(protocol, _PROTOCOLS),
        channels=None if low is None else (int(low), int(high)),
    )


def _with_residue(longer: str, shorter: str, *, anything: bool) -> bool:
    """Return whether ``longer`` is ``shorter`` behind the end of other output: a number, or anything inside a line."""
    residue = longer.removesuffix(shorter)
    return bool(residue) and residue != longer and (anything or _RESIDUE.fullmatch(residue) is not None)


def _spelled(text: str, names: tuple[str, ...]) -> str:
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
