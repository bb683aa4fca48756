"""This rank's flight recorder: left in the run folder when the rank has to go, and compared after a cell that went well.

Reading the recorder takes its own lock only, for less than a millisecond a thousand calls, so that it can be done from
another thread while this rank sits in a collective. Should it hang all the same, it is not waited for.
"""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from stepscope.core.errors import DataError, StepscopeError
from stepscope.rank.pace import Control
from stepscope.records import codec
from stepscope.records.nccl import FlightDump, FlightEntry, FlightGroup
from stepscope.store.importers import flight_recorder
from stepscope.store.layout import CellLayout
from stepscope.store.writer import write_bytes
from stepscope.traces.flight import compare_dumps, summary
from stepscope.traces.flight_calls import signature

READ_TIMEOUT_S = 1.0
"""NCCL's recorder asks CUDA about its events, which waits where the driver is stuck."""


def snapshot(*, rank: int, world_size: int) -> FlightDump:
    """Return all calls that this process's recorders hold. ``unavailable`` says why where there is no recorder.

    torch keeps NCCL's calls apart from those of the other backends: both are read, in order of time.
    """
    host = socket.gethostname()
    try:
        dumps = [flight_recorder.from_json(text, rank=rank) for text in _read_recorders()]
    except DataError as error:
        return _empty_dump(rank, world_size, error.line)
    if not dumps:
        return _empty_dump(rank, world_size, "this torch has no flight recorder that can be read")
    filled = [d for d in dumps if d.entries] or dumps[:1]
    if len(filled) > 1 and all(e.created_ns is not None for d in filled for e in d.entries):
        filled = [_merged_dumps(filled)]
    dump = filled[0]
    return replace(dump, rank=rank, world_size=world_size, host=host, groups=_with_members(dump.groups))


class BlackBox:
    """Writes this rank's recorder into the folder of its cell, once, from whichever thread comes first.

    A class because every way out of the process leads here: SIGTERM, an exception, an abort inside a library.
    """

    def __init__(self, *, rank: int, world_size: int) -> None:
        self._rank = rank
        self._world_size = world_size
        self._lock = threading.RLock()
        self._left = False

    def leave(self, cell: CellLayout, *, timeout_s: float = READ_TIMEOUT_S) -> None:
        """Write ``cell``'s file of this rank. Never raises for a full disk; does nothing before the process group."""
        with self._lock:
            if self._left or not dist.is_initialized():
                return
            self._left = True
            dump = self._read(timeout_s)
            with suppress(StepscopeError):
                write_bytes(cell.flight(self._rank), codec.encode_line(dump, header=True))

    def _read(self, timeout_s: float) -> FlightDump:
        """Return the recorder's dump; an empty one where that takes too long."""
        dumps: list[FlightDump] = []

        def read() -> None:
            dumps.append(snapshot(rank=self._rank, world_size=self._world_size))

        reader = threading.Thread(target=read, name="stepscope-flight", daemon=True)
        reader.start()
        reader.join(timeout_s)
        if dumps:
            return dumps[0]
        return _empty_dump(self._rank, self._world_size, f"its flight recorder did not respond within {timeout_s:g} s")


def same_calls(control: Control, group: dist.ProcessGroup | None = None) -> str | None:
    """Say how the ranks' collectives on ``group`` (None: the default one) differ; None when all made the same.

    Outside the timed region, and by all ranks together, when none of them is in a collective: costs milliseconds and no
    collective. gloo turns another dtype into wrong numbers without a word, which shows here. Equal calls in another
    order and other reduce operations do not: the recorder knows neither values nor reduce operations.
    None also where nothing is recorded.
    """
    if not dist.is_initialized() or control.world_size == 1:
        return None
    name = (group or dist.group.WORLD).group_name  # type: ignore[union-attr]
    dump = snapshot(rank=control.rank, world_size=control.world_size)
    ours = _calls_by_sequence(dump, name)
    windows = control.all_gather(None if dump.unavailable else [min(ours, default=0), max(ours, default=0)])
    if None in windows:
        return None
    start = max(low for low, _ in windows)
    digest = _calls_digest(call for s, calls in sorted(ours.items()) if s >= start for call in calls)
    if len(set(control.all_gather(digest))) == 1 and len({high for _, high in windows}) == 1:
        return None
    everyone = control.all_gather(codec.to_builtins(_dump_part(dump, name, start)))
    findings = compare_dumps(msgspec.convert(everyone, list[FlightDump]), world_size=None)
    return summary(findings) or _counts_text(windows)


def assert_same_calls(control: Control) -> None:
    """Raise StepscopeError, on every rank, when the ranks' collectives on the default group differ."""
    if (difference := same_calls(control)) is not None:
        raise StepscopeError(
            difference,
            why="gloo returns wrong numbers for such calls without an error",
            fix="make every rank call the same collectives, with the same sizes and types, in the same order",
        )


def _counts_text(windows: Iterable[Any]) -> str:
    """Describe ranks that finished, and yet not equally many calls: what a broadcast's leaves and the like allow."""
    return "ranks called different numbers of collectives: " + ", ".join(
        f"rank {rank} {last}" for rank, (_, last) in enumerate(windows)
    )


def _dump_part(dump: FlightDump, name: str, start: int) -> FlightDump:
    """Return the dump's calls of one group from ``start`` on."""
    return replace(
        dump,
        kept="latest",
        entries=tuple(e for e in dump.entries if e.group == name and not e.is_p2p and e.sequence >= start),
        groups=tuple(g for g in dump.groups if g.name == name),
    )


def _calls_by_sequence(dump: FlightDump, name: str) -> dict[int, list[FlightEntry]]:
    calls: dict[int, list[FlightEntry]] = {}
    for entry in dump.entries:
        if entry.group == name and not entry.is_p2p:
            calls.setdefault(entry.sequence, []).append(entry)
    return calls


def _calls_digest(entries: Iterable[FlightEntry]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for entry in entries:
        digest.update(f"{entry.sequence} {signature(entry)}\n".encode())
    return digest.hexdigest()


def _read_recorders() -> list[str | bytes]:
    names = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
    return [getattr(c10d, name)(True, False) for name in names if hasattr(c10d, name)]


def _merged_dumps(dumps: list[FlightDump]) -> FlightDump:
    """Merge the dumps, calls numbered anew by time: one recorder's ids mean nothing beside another's."""
    entries = sorted((e for d in dumps for e in d.entries), key=lambda e: (e.created_ns or 0, e.record_id))
    whole = all(d.kept == "all" for d in dumps)
    groups = {g.name: g for d in dumps for g in d.groups}
    return replace(
        dumps[0],
        entries=tuple(replace(e, record_id=i) for i, e in enumerate(entries)),
        groups=tuple(groups.values()),
        kept="all" if whole else "latest",
    )


def _with_members(groups: tuple[FlightGroup, ...]) -> tuple[FlightGroup, ...]:
    """Add the members to the groups: gloo's dump does not say who is in one; this process knows. Groups without any call are
    added."""
    members = _members_by_group()
    names = {g.name for g in groups}
    added = (FlightGroup(name=name) for name in members if name not in names)
    return tuple(g if g.ranks is not None else replace(g, ranks=members.get(g.name)) for g in (*groups, *added))


def _members_by_group() -> dict[str, tuple[int, ...]]:
    """Return global ranks by the name of their group, of every group this rank is in. Empty where torch keeps it
    elsewhere."""
    world = getattr(dist.distributed_c10d, "_world", None)
    names, ranks = getattr(world, "pg_names", None), getattr(world, "pg_group_ranks", None)
    if names is None or ranks is None:
        return {}
    # Copied at once: the main thread may make or end a group meanwhile.
    by_group = dict(ranks)
    return {str(name): tuple(sorted(by_group[group])) for group, name in dict(names).items() if group in by_group}


def _empty_dump(rank: int, world_size: int, why: str) -> FlightDump:
    """Return a dump that holds nothing. why: the reason."""
    return FlightDump(
        rank=rank,
        entries=(),
        groups=(),
        kept="pending",
        world_size=world_size,
        host=socket.gethostname(),
        unavailable=why,
    )
