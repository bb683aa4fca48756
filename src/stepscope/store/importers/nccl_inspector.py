"""The NCCL Inspector (profiler plugin ``ext-profiler/inspector``, NCCL 2.28 on): a line of JSON for each collective of each
process, one file a process; all files of a folder are one job.

A collective's time on a rank goes from the start of its kernel to its end: the rank that comes last has the shortest, as it
waits for nobody. Where the files of all ranks are there, a call's time is therefore that of its last rank; before version
4.1 of the format only the latest call of each interval is written, so that few calls are in the files of all ranks.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from stepscope.core.errors import DataError
from stepscope.records.comm import Arrivals, CommRow
from stepscope.records.imported import Imported, LeftOut
from stepscope.store.comm_table import mean_row
from stepscope.store.importer import OTHER_KIND, Candidate, Importer, reading

_OPS = {
    "AllReduce": ("all_reduce", False), "AllGather": ("all_gather", True), "ReduceScatter": ("reduce_scatter", True),
    "Broadcast": ("broadcast", False), "Reduce": ("reduce", False),
}  # fmt: skip
"""Name -> ours, and whether the size that is written is that of one rank's part."""
_TOGETHER = ("all_reduce", "all_gather", "reduce_scatter")
"""Operations that no rank leaves before the last one has come."""
_HOST = "collective_cpu"
"""Source of times that begin when the host enqueues a call, not when it runs."""
_MOST_RANKS = 1 << 20
LEAST_LATE = 0.1
"""Of a call's longest time: a rank that comes last by less is not called late."""
LEAST_LATE_NS = 5_000
"""The same, ns: times are whole microseconds."""


@dataclass
class _Header:
    id: str
    rank: int
    n_ranks: int
    nnodes: int = 0
    comm_name: str = "unknown"


@dataclass
class _Call:
    coll: str
    coll_sn: int
    coll_msg_size_bytes: int
    coll_exec_time_us: float
    coll_algobw_gbs: float
    coll_timing_source: str = "unknown"


@dataclass
class _Line:
    header: _Header
    metadata: dict[str, Any] = field(default_factory=dict)
    coll_perf: _Call | None = None


@dataclass(eq=False)
class _Group:
    """A communicator: its hosts by rank, and the calls of each operation and size by rank: (number, microseconds)."""

    name: str
    ranks: int
    nodes: int
    hosts: dict[int, str] = field(default_factory=dict)
    calls: dict[tuple[str, int], dict[int, tuple[array[int], array[float]]]] = field(default_factory=dict)


def _written_lines(path: Path, notes: Counter[str]) -> Iterator[_Line]:
    """Yield what was written, a line each or indented; what is no such object is counted."""
    decoder, whole = msgspec.json.Decoder(_Line), b""
    with reading(path) as file:
        for line in file:
            whole = line if line.startswith(b"{") else whole + line
            if line.rstrip()[-1:] != b"}" or line[:1] not in b"{}":
                continue
            try:
                yield decoder.decode(whole)
            except (msgspec.DecodeError, ValueError):  # of no UTF-8, too
                notes["damaged lines left out"] += 1
            whole = b""
    notes["damaged lines left out"] += bool(whole.strip())


def _take_file(path: Path, groups: dict[tuple[str, int], _Group], notes: Counter[str]) -> None:
    """Put the calls of a file to their communicators."""
    for line in _written_lines(path, notes):
        head, call = line.header, line.coll_perf
        if call is None:
            continue
        op, of_part = _OPS.get(call.coll, ("", False))
        size, us = call.coll_msg_size_bytes * (head.n_ranks if of_part else 1), call.coll_exec_time_us
        if not op or call.coll_timing_source == _HOST or us <= 0 or not size:
            notes[f"calls of {call.coll} left out: {'no device timed them' if op else 'their rate is unknown'}"] += 1
        elif (
            abs(size / us / 1e3 - call.coll_algobw_gbs) > 0.02 * call.coll_algobw_gbs + 1e-5
            or not 0 <= head.rank < head.n_ranks <= _MOST_RANKS
            or not 0 <= call.coll_sn < 1 << 62
        ):
            notes["calls left out: size, time and bandwidth contradict each other"] += 1
        else:
            name = head.id if head.comm_name == "unknown" else f"{head.comm_name} ({head.id})"
            group = groups.setdefault((head.id, head.n_ranks), _Group(name, head.n_ranks, head.nnodes))
            group.hosts[head.rank] = str(line.metadata.get("hostname", "unknown"))
            numbers, times = group.calls.setdefault((op, size), {}).setdefault(head.rank, (array("q"), array("d")))
            numbers.append(call.coll_sn)
            times.append(us)


def _rows_and_arrivals(group: _Group, notes: Counter[str]) -> tuple[list[CommRow], Arrivals | None]:
    """Return a row for each operation and size of a communicator, and who came last to its calls."""
    rows, together = [], 0
    late, late_ns, transfer_ns = [0] * group.ranks, [0.0] * group.ranks, 0.0
    for (op, size), by_rank in group.calls.items():
        ranks = sorted(by_rank)
        maps = [dict(zip(*by_rank[rank], strict=True)) for rank in ranks]
        shared = set.intersection(*map(set, maps)) if len(ranks) == group.ranks > 1 else set()
        calls = [[times[number] * 1e3 for times in maps] for number in sorted(shared)]
        whole = bool(calls) and op in _TOGETHER
        for times in calls if whole else ():
            first, second = sorted(times)[:2]
            together, transfer_ns = together + 1, transfer_ns + first
            if second - first >= max(LEAST_LATE * max(times), LEAST_LATE_NS):
                last = times.index(first)
                late[last], late_ns[last] = late[last] + 1, late_ns[last] + second - first
        of_calls = [min(times) if whole else max(times) for times in calls]
        ns = of_calls or [us * 1e3 for times in maps for us in times.values()]
        row = mean_row(
            cell_id=group.name, op=op, world_size=group.ranks, size_bytes=size, time_ns_mean=fmean(ns[1:] or ns),
            hosts=group.nodes or None, device="cuda", backend="nccl", dtype="unknown", iterations=len(ns),
        )  # fmt: skip
        rows.append(row)
        notes["sizes of which no call is in the files of all ranks: their times hold waiting for the last of them"] += (
            not calls and group.ranks > 1
        )
    if not together:
        return rows, None
    hosts = tuple(group.hosts[rank] for rank in range(group.ranks))
    arrivals = Arrivals(
        communicator=group.name, hosts=hosts, calls=together, late_calls=tuple(late), late_ns=tuple(late_ns),
        transfer_ns=transfer_ns,
    )  # fmt: skip
    return rows, arrivals


def _read_inspector(source: Candidate) -> Imported:
    """Read the calls of all files by communicator. Raises DataError where none has a collective with a time."""
    groups: dict[tuple[str, int], _Group] = {}
    notes: Counter[str] = Counter()
    others = [path for path in source.files if source.is_folder and not _recognises_inspector(Candidate(path))]
    for path in source.files:
        if path not in others:
            _take_file(path, groups, notes)
    judged = [_rows_and_arrivals(group, notes) for group in groups.values()]
    lines = tuple(f"{number:,} {what}" for what, number in notes.items() if number)
    if not groups:
        raise DataError(
            f"{source.path}: no collective with a time in it",
            why="; ".join(lines) or "the Inspector had written none",
            fix="let the job run on, and copy the folder of NCCL_INSPECTOR_DUMP_DIR again",
        )
    return Imported(
        format="nccl_inspector",
        path=str(source.path),
        comm_rows=tuple(row for rows, _ in judged for row in rows),
        arrivals=tuple(arrivals for _, arrivals in judged if arrivals is not None),
        notes=lines,
        remarks=("NCCL Inspector: a call's time is that of its last rank where the files of all ranks are there",),
        left_out=tuple(LeftOut(path=str(path), reason=OTHER_KIND) for path in others),
    )


def _recognises_inspector(candidate: Candidate) -> bool:
    return candidate.text.lstrip()[:1] == "{" and '"header"' in candidate.text


IMPORTER = Importer(
    title="JSON lines of the NCCL Inspector",
    recognises=_recognises_inspector,
    read_files=_read_inspector,
    rank=25,
    marks=("coll_perf", "inspector_output_format_version"),
)
