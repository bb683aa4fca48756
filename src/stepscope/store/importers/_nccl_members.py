"""Processes, and the communicators that they are members of, while a log of NCCL's is read."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

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
    """Where lines of the process go that name no communicator and fit several or none."""
    if process.unstated is None:
        process.unstated = NcclMember(process=process, key=("unstated",))
    return process.unstated


def connected(process: Process, *, own: int, other: int, device: int | None) -> NcclMember | None:
    """The one open communicator of the process in which it is rank ``own`` and there is a rank ``other``."""
    fitting = [m for m in process.members if m.rank == own and m.ended is None and other < (m.nranks or 0)]
    if len(fitting) > 1 and device is not None:
        fitting = [m for m in fitting if m.cuda_device == device]
    return fitting[0] if len(fitting) == 1 else None


def merge_way(ways: dict[tuple[int, int, str], Way], key: tuple[int, int, str], way: Way) -> None:
    """Add what another line, or the other end, says of a link."""
    known = ways.setdefault(key, Way())
    known.channels |= way.channels
    known.send_nics |= way.send_nics
    known.receive_nics |= way.receive_nics
    if way.gdrdma is not None:
        known.gdrdma = way.gdrdma and known.gdrdma is not False
    known.proxy_rank = known.proxy_rank if way.proxy_rank is None else way.proxy_rank


def by_pointer(process: Process, pointer: str) -> NcclMember | None:
    """The open communicator at this address: addresses are used again."""
    mine = (m for m in reversed(process.members) if m.pointer == pointer)
    return next((m for m in mine if m.ended is None), None)


def identity(process: Process, member: NcclMember, rest: str) -> tuple[object, ...]:
    """What members of one communicator have in common."""
    if found := _COMM_ID.search(rest):
        return ("id", found[1])
    if found := _PARENT.search(rest):
        parent = by_pointer(process, found[1])
        born_of: object = parent.key if parent is not None else (process.file, process.host, process.pid)
        order = found[2] or sum(
            m.key is not None and m.key[:2] == ("split", born_of) and m is not member for m in process.members
        )
        return ("split", born_of, order, found[3])
    earlier = sum(
        m.nranks == member.nranks and m.cuda_device == member.cuda_device and m is not member for m in process.members
    )
    return ("size", member.nranks, earlier)
