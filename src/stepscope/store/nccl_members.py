"""The lines of NCCL's debug log, whatever else is written into the same file, and the processes and communicators that they
speak of.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from stepscope.store.importer import reading
from stepscope.store.log_lines import without_prefix

BLOCK_BYTES = 1 << 18
MAX_LINE_BYTES = 1 << 14
"""Bytes of a line that are looked at, its last: NCCL's own are shorter, but may follow a progress bar without an end."""

_HEADER = re.compile(
    rb"(?<![\w.\-])([\w.\-]{1,255}):(\d{1,9}):(\d{1,9}) \[(-?\d{1,9})\] (?:(\S+:\d+) (?:\(\S*\) )?)?NCCL (INFO|WARN) ?"
)
_BARE = re.compile(
    rb"(?:(?:^|\s)\[(-?\d{1,9})\] (?:(\S+:\d+) )?|^\s*(?:\[rank\d+\]: ?)?(?=NCCL \w+ (?:Channel \d|NCCL_\w+ set |NET/|"
    rb"Using net|Trees |comm 0x|ncclComm|Bootstrap :|Connected all|GPU Direct)))NCCL (INFO|WARN) ?"
)
"""Matches the same without host and processes, as logs are pasted."""
UNNAMED = "?"
_VERSION = re.compile(rb"(?<!, )\b[NR]CCL version\s*:?\s*(\d\S*)(?:\s+\S+:\S+)?\s*$")


class ParsedLine(NamedTuple):
    """One line of NCCL's. glued: it began in the middle of another line, so that its host may have letters too many."""

    host: str
    pid: int
    tid: int
    device: int
    place: str  # file:line of a warning, empty otherwise
    warning: bool
    text: str
    glued: bool


class Lines:
    """The lines of one file, read once from beginning to end in constant memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.count = 0
        self.truncated = False

    def __iter__(self) -> Iterator[bytes]:
        """Every whole line; an unfinished last one is left out. Raises DataError for a file that cannot be read."""
        rest = b""
        self.truncated = True  # a .gz may be cut off
        with reading(self._path) as file:
            while block := file.read1(BLOCK_BYTES):
                *lines, rest = (rest + block).split(b"\n")
                self.count += len(lines)
                yield from lines
                rest = rest[-BLOCK_BYTES:]
            self.truncated = bool(rest)


@lru_cache(maxsize=4096)  # a job makes the same calls again and again
def parse_line(line: bytes) -> tuple[ParsedLine | None, int]:
    """Return what NCCL says in a line, and how many of its lines ended there because another one ran into them.

    Of those nothing is taken: where one line begins inside another, the other's rest stands anywhere.
    """
    headers = list(_HEADER.finditer(line))
    if not headers:
        bare = _BARE.search(line)
        return (None if bare is None else _line_without_process(bare)), 0
    last = headers[-1]
    host, pid, tid, device, place, level = last.groups()
    parsed = ParsedLine(
        host=host.decode(),
        pid=int(pid),
        tid=int(tid),
        device=int(device),
        place=(place or b"").decode(errors="replace"),
        warning=level == b"WARN",
        text=line[last.end() :].decode(errors="replace").rstrip(),
        glued=len(headers) > 1 or (last.start() > 0 and _HEADER.match(without_prefix(line)[1].lstrip()) is None),
    )
    return parsed, len(headers) - 1


def _line_without_process(bare: re.Match[bytes]) -> ParsedLine:
    """Return a line that does not say who printed it: each device is taken for a process, no device for 0."""
    number, place, level = bare.groups()
    device = int(number or 0)
    return ParsedLine(
        host=UNNAMED,
        pid=device,
        tid=device,
        device=device,
        place=(place or b"").decode(errors="replace"),
        warning=level == b"WARN",
        text=bare.string[bare.end() :].decode(errors="replace").rstrip(),
        glued=False,
    )


def parse_version(line: bytes) -> str | None:
    """Return the version where NCCL states it on a line of its own, without saying who speaks, or None."""
    match = _VERSION.search(line)
    return match[1].decode(errors="replace") if match else None


_COMM_ID = re.compile(r"commId (0x[0-9a-f]+)")
_PARENT = re.compile(r"parent (0x[0-9a-f]+)(?: splitCount (\d+))? color (-?\d+)")


@dataclass(kw_only=True, slots=True)
class Way:
    """The channels between two ranks that use one transport."""

    channels: int = 0  # one bit each
    send_nics: set[int] = field(default_factory=set)
    receive_nics: set[int] = field(default_factory=set)
    gdrdma: bool | None = None
    proxy_rank: int | None = None


class Choice(NamedTuple):
    op: str | None
    low_bytes: int
    high_bytes: int
    algorithm: str
    protocol: str
    channels: tuple[int, int] | None


@dataclass(kw_only=True, slots=True, eq=False)
class NcclMember:
    """One rank of one communicator, as its process tells it."""

    process: Process
    pointer: str | None = None
    key: tuple[object, ...] | None = None
    rank: int | None = None
    nranks: int | None = None
    cuda_device: int | None = None
    nvml_device: int | None = None
    bus_id: str | None = None
    initialised: bool = False
    ended: str | None = None
    nodes: int | None = None
    nvls: bool | None = None
    networks: list[str] = field(default_factory=list)
    channels: tuple[int | None, ...] = ()
    rings: dict[int, tuple[int, ...]] = field(default_factory=dict)
    parents: dict[int, int] = field(default_factory=dict)  # by channel
    ways: dict[tuple[int, int, str], Way] = field(default_factory=dict)
    choices: dict[Choice, int] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        return not (self.rings or self.parents or self.ways or self.choices or self.channels)


@dataclass(kw_only=True, slots=True, eq=False)
class Process:
    """file: place of its log among the files read; a process writes into one."""

    file: int
    host: str
    pid: int
    glued: bool
    members: list[NcclMember] = field(default_factory=list)
    unstated: NcclMember | None = (
        None  # what was said outside any initialisation and fits several communicators or none
    )
    beginning: dict[int, NcclMember] = field(default_factory=dict)  # by thread: the communicator it initialises
    networks: dict[int, list[str]] = field(default_factory=dict)  # by thread, said before its communicator
    called: dict[int, str] = field(default_factory=dict)  # by thread: pointer of its latest call's communicator
    versions: dict[str, None] = field(default_factory=dict)
    states_starts: bool = False  # NCCL 2.18 and later


def unstated(process: Process) -> NcclMember:
    """Return the member for lines of the process that name no communicator and fit several or none."""
    if process.unstated is None:
        process.unstated = NcclMember(process=process, key=("unstated",))
    return process.unstated


def connected(process: Process, *, own: int, other: int, device: int | None) -> NcclMember | None:
    """Return the one open communicator of the process in which it is rank ``own`` and there is a rank ``other``, or None."""
    fitting = [m for m in process.members if m.rank == own and m.ended is None and other < (m.nranks or 0)]
    if len(fitting) > 1 and device is not None:
        fitting = [m for m in fitting if m.cuda_device == device]
    return fitting[0] if len(fitting) == 1 else None


def merge_way(ways: dict[tuple[int, int, str], Way], key: tuple[int, int, str], way: Way) -> None:
    """Add what another line, or the other end, says of a link."""
    recorded = ways.setdefault(key, Way())
    recorded.channels |= way.channels
    recorded.send_nics |= way.send_nics
    recorded.receive_nics |= way.receive_nics
    if way.gdrdma is not None:
        recorded.gdrdma = way.gdrdma and recorded.gdrdma is not False
    recorded.proxy_rank = recorded.proxy_rank if way.proxy_rank is None else way.proxy_rank


def by_pointer(process: Process, pointer: str) -> NcclMember | None:
    """Return the open communicator at this address, or None; addresses are used again."""
    at_address = (m for m in reversed(process.members) if m.pointer == pointer)
    return next((m for m in at_address if m.ended is None), None)


def identity(process: Process, member: NcclMember, rest: str) -> tuple[object, ...]:
    """Return what members of one communicator have in common."""
    if match := _COMM_ID.search(rest):
        return ("id", match[1])
    if match := _PARENT.search(rest):
        parent = by_pointer(process, match[1])
        born_of: object = parent.key if parent is not None else (process.file, process.host, process.pid)
        order = match[2] or sum(
            m.key is not None and m.key[:2] == ("split", born_of) and m is not member for m in process.members
        )
        return ("split", born_of, order, match[3])
    earlier = sum(
        m.nranks == member.nranks and m.cuda_device == member.cuda_device and m is not member for m in process.members
    )
    return ("size", member.nranks, earlier)
