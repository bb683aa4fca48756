"""HolisticTraceAnalysis 0.5.0's tables from our columns, mistakes included: equal to its output where we read as it does.

Every function says what HTA computes, not what would be right. Known mistakes that are kept: the filter of the
rows (``rows``), classes by name alone, computation that hides copies and communication, gaps against the
previous kernel instead of the latest end, "others" rows over sums, and two stragglers whatever the data says.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np
from tests.hta_oracle.records import (
    HtaBandwidth,
    HtaDescription,
    HtaFailure,
    HtaIdle,
    HtaKernel,
    HtaKernelType,
    HtaOverlap,
    HtaQueue,
    HtaReport,
    HtaTemporal,
)
from tests.hta_oracle.rows import Floats, HtaRows, Ints, Mask, hta_events, hta_rows
from tests.hta_oracle.stragglers import CommKernels, comm_kernels, potential_stragglers

from stepscope.core.dataclass import dataclass
from stepscope.traces.events import DEVICE, NONE, TraceSet

COMPUTATION, COMMUNICATION, MEMORY, OTHER = "COMPUTATION", "COMMUNICATION", "MEMORY", "OTHER"
KERNEL_TYPES = (COMPUTATION, COMMUNICATION, MEMORY)

_IS_COMMUNICATION = re.compile(r"^nccl.*Kernel")
_IS_MEMORY = re.compile(r"(^Memcpy)|(^Memset)|(^dma)")
_IS_NOT_COMPUTATION = re.compile(r"(.*(Memcpy)|(Memset))|(.*Sync)")
_KERNEL_WAIT_US = 30.0  # documented in ns, applied in us
_LAUNCHES = frozenset({
    "cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cudaMemcpyAsync", "cudaMemsetAsync",
    "runFunction - job_prep_and_submit_for_execution", "hipLaunchKernel", "hipExtModuleLaunchKernel",
    "hipMemsetAsync", "hipMemcpyAsync", "hipMemcpyWithStream",
})  # fmt: skip


def hta_report(
    traces: TraceSet,
    *,
    include_last_profiler_step: bool = False,
    ns_rounding: bool = True,
    num_kernels: int = 10,
    duration_ratio: float = 0.8,
) -> HtaReport:
    """All tables for a job, as HTA 0.5.0 prints them with these options (its defaults).

    ``ns_rounding=False`` is its HTA_DISABLE_NS_ROUNDING=1. Needs every event of every rank (not a
    ``device_only`` load).

    Queue lengths and bandwidths count equal times in the order of an unstable sort: there, HTA itself gives
    slightly different numbers on different processors, and so does this.
    """
    parsed = [hta_events(r.events, ns_rounding=ns_rounding) for r in traces.ranks]
    first_us = min((p.first_us for p in parsed), default=0.0)
    filtered = len(frozenset().union(*(p.step_names for p in parsed))) >= 2
    ranks = []
    for trace, events in zip(traces.ranks, parsed, strict=True):
        rows = hta_rows(events, first_us=first_us, filtered=filtered, include_last=include_last_profiler_step)
        ranks.append(_rank_tables(rows, trace.rank, num_kernels=num_kernels, duration_ratio=duration_ratio))
    return HtaReport(
        include_last_profiler_step=include_last_profiler_step,
        ns_rounding=ns_rounding,
        temporal=_joined([r.temporal for r in ranks]),
        overlap=tuple(r.overlap for r in ranks),
        kernel_types=_kernel_types([r.type_sums for r in ranks]),
        kernels=tuple(sorted((k for r in ranks for k in r.kernels), key=_kernel_order)),
        idle=_joined([r.idle for r in ranks]),
        queues=_joined([r.queues for r in ranks]),
        bandwidths=tuple(b for r in ranks for b in r.bandwidths),
        stragglers=potential_stragglers([r.comm_kernels for r in ranks]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _RankTables:
    temporal: tuple[HtaTemporal, ...] | HtaFailure
    overlap: HtaOverlap
    type_sums: dict[str, int]
    kernels: tuple[HtaKernel, ...]
    idle: tuple[HtaIdle, ...] | HtaFailure
    queues: tuple[HtaQueue, ...] | HtaFailure
    bandwidths: tuple[HtaBandwidth, ...]
    comm_kernels: CommKernels


def _rank_tables(rows: HtaRows, rank: int, *, num_kernels: int, duration_ratio: float) -> _RankTables:
    on_stream = rows.stream != NONE
    classes = _classes(rows)
    unions = {c: _union(rows, on_stream & (classes == c)) for c in KERNEL_TYPES}
    return _RankTables(
        temporal=_temporal(rank, _union(rows, on_stream), unions[COMPUTATION]),
        overlap=_overlap(rank, unions),
        type_sums=_type_sums(unions),
        kernels=tuple(
            kernel
            for c in KERNEL_TYPES
            for kernel in _kernels(
                rows,
                on_stream & (classes == c),
                rank,
                c,
                num_kernels=num_kernels,
                duration_ratio=duration_ratio,
            )
        ),
        idle=_idle(rows, rank),
        queues=_queues(rows, rank),
        bandwidths=_bandwidths(rows, on_stream & (classes == MEMORY), rank),
        comm_kernels=comm_kernels(rows, rank),
    )


def kernel_type(name: str) -> str:
    """HTA's class of a name: COMMUNICATION, MEMORY, COMPUTATION or OTHER."""
    if _IS_COMMUNICATION.match(name):
        return COMMUNICATION
    if _IS_MEMORY.match(name):
        return MEMORY
    return OTHER if _IS_NOT_COMPUTATION.match(name) else COMPUTATION


def _classes(rows: HtaRows) -> np.ndarray[tuple[int], np.dtype[np.str_]]:
    by_name = np.array([kernel_type(n) for n in rows.events.names] or [OTHER])
    return by_name[rows.events.name[rows.index]]


_Union = tuple[Floats, Floats]
_Row = TypeVar("_Row")


def _union(rows: HtaRows, mask: Mask) -> _Union:
    """Starts and ends of merged intervals; touching ones merge, and one of negative length can stay."""
    start, duration = rows.start_us[mask], rows.dur_us[mask]
    order = np.argsort(start, kind="stable")
    start, end = start[order], (start + duration)[order]
    if not len(start):
        return start, end
    reach = np.maximum.accumulate(end)
    first = np.flatnonzero(np.concatenate([[True], start[1:] > reach[:-1]]))
    return start[first], np.maximum.reduceat(end, first)


def _temporal(rank: int, everything: _Union, compute: _Union) -> tuple[HtaTemporal, ...] | HtaFailure:
    starts, ends = everything
    if not len(starts):
        return HtaFailure(raises="IndexError", why=f"rank {rank} has no event with a stream")
    kernel = float(ends[-1] - starts[0])
    idle = kernel - float(ends.sum() - starts.sum())
    computing = float(compute[1].sum() - compute[0].sum())
    rest = kernel - computing - idle
    if idle > kernel or computing > kernel or rest < 0:
        return HtaFailure(raises="AssertionError", why=f"rank {rank}: its parts do not fit into its kernel time")
    return (
        HtaTemporal(
            rank=rank,
            idle_us=idle,
            compute_us=computing,
            non_compute_us=rest,
            kernel_us=kernel,
            idle_percent=_percent(idle, kernel, 2),
            compute_percent=_percent(computing, kernel, 2),
            non_compute_percent=_percent(rest, kernel, 2),
        ),
    )


def _running(unions: Iterable[tuple[int, _Union]]) -> tuple[Ints, Floats]:
    """Which classes run (sum of their codes) in each stretch between two edges, and how long it lasts."""
    codes, times = [], []
    for code, (starts, ends) in unions:
        codes += [np.full(len(starts), code), np.full(len(ends), -code)]
        times += [starts, ends]
    time = np.concatenate(times)
    order = np.argsort(time, kind="stable")
    return np.cumsum(np.concatenate(codes)[order])[:-1], np.diff(time[order])


def _overlap(rank: int, unions: dict[str, _Union]) -> HtaOverlap:
    comm_starts, comm_ends = unions[COMMUNICATION]
    running, lengths = _running([(1, unions[COMMUNICATION]), (2, unions[COMPUTATION])])
    both, total = float(lengths[running == 3].sum()), float((comm_ends - comm_starts).sum())
    return HtaOverlap(rank=rank, overlap_percent=_percent(both, total, 2))


def _type_sums(unions: dict[str, _Union]) -> dict[str, int]:
    """Whole microseconds (each stretch cut off) per combination of classes; a combination may last 0."""
    running, lengths = _running([(1 << i, unions[c]) for i, c in enumerate(KERNEL_TYPES)])
    sums: dict[str, int] = {}
    for state in np.unique(running[running > 0]).tolist():
        label = " overlapping ".join(c for i, c in enumerate(KERNEL_TYPES) if state & (1 << i))
        sums[label] = sums.get(label, 0) + int(np.trunc(lengths[running == state]).sum())
    return sums


def _kernel_types(per_rank: Sequence[dict[str, int]]) -> tuple[HtaKernelType, ...]:
    sums = {label: sum(r.get(label, 0) for r in per_rank) for label in sorted(set().union(*per_rank))}
    total = sum(sums.values())
    return tuple(
        HtaKernelType(kernel_type=label, sum_us=s, percent=_percent(s, total, 1))
        for label, s in sorted(sums.items(), key=lambda item: -item[1])
    )


@dataclass(frozen=True, slots=True)
class _Sums:
    name: str
    values: Floats

    @property
    def total(self) -> float:
        return math.fsum(self.values.tolist())


def _kernels(
    rows: HtaRows, mask: Mask, rank: int, kind: str, *, num_kernels: int, duration_ratio: float
) -> list[HtaKernel]:
    codes = rows.events.name[rows.index[mask]]
    order = np.argsort(codes, kind="stable")
    used, first = np.unique(codes[order], return_index=True)
    parts = np.split(rows.dur_us[mask][order], first[1:]) if len(used) else []
    groups = [_Sums(rows.events.names[c], p) for c, p in zip(used.tolist(), parts, strict=True)]
    groups.sort(key=lambda g: g.name)
    groups.sort(key=lambda g: -g.total)
    if len(groups) > num_kernels:
        groups = _with_others(groups, num_kernels=num_kernels, duration_ratio=duration_ratio)
    return [
        HtaKernel(
            rank=rank,
            kernel_type=kind,
            name=g.name,
            sum_us=g.total,
            max_us=float(g.values.max()),
            min_us=float(g.values.min()),
            mean_us=g.total / len(g.values),
            std_us=float(g.values.std(ddof=1)) if len(g.values) > 1 else 0.0,
        )
        for g in groups
    ]


def _with_others(groups: list[_Sums], *, num_kernels: int, duration_ratio: float) -> list[_Sums]:
    """Names beyond the limit, or beyond the quantile of the running sum, become one; values become sums."""
    totals = np.array([g.total for g in groups])
    running = totals.cumsum()
    limit = np.quantile(running, duration_ratio)
    kept: dict[str, list[float]] = {}
    for place, group in enumerate(groups):
        dropped = place >= num_kernels or running[place] > limit
        kept.setdefault("others" if dropped else group.name, []).append(float(totals[place]))
    return [_Sums(name, np.array(values)) for name, values in kept.items()]


def _kernel_order(kernel: HtaKernel) -> tuple[str, str, int]:
    return kernel.kernel_type, kernel.name, kernel.rank


def _idle(rows: HtaRows, rank: int) -> tuple[HtaIdle, ...] | HtaFailure:
    """Gaps per stream: after a late launch host_wait, else short ones kernel_wait, else other."""
    category = rows.events.category[rows.index]
    chosen = np.flatnonzero((rows.stream != NONE) & np.isin(category, [int(c) for c in DEVICE]))
    if not len(chosen):
        return HtaFailure(raises="ValueError", why=f"rank {rank} has no kernel, copy or memset")
    launched = np.full(len(rows.events), np.nan)
    launched[rows.index] = rows.start_us
    found = []
    _, seen = np.unique(rows.stream[chosen], return_index=True)
    for stream in rows.stream[chosen[np.sort(seen)]].tolist():
        mine = chosen[rows.stream[chosen] == stream]
        mine = mine[np.argsort(rows.start_us[mine], kind="stable")]
        start = rows.start_us[mine]
        previous = np.concatenate([[np.nan], (start + rows.dur_us[mine])[:-1]])
        gap = start - previous
        link = rows.link[mine]
        launch = np.where(link >= 0, launched[link], np.nan)
        late = launch > previous
        short = ~late & (gap < _KERNEL_WAIT_US)
        masks = {"host_wait": late, "kernel_wait": short, "other": ~late & ~short}
        sums = {name: float(np.nansum(gap[m])) for name, m in masks.items() if m.any()}
        total = sum(sums.values())
        found += [
            HtaIdle(
                rank=rank,
                stream=stream,
                category=name,
                idle_us=round(idle, 2),
                ratio=round(idle / total, 2) if total else None,
            )
            for name, idle in sums.items()
        ]
    return tuple(found)


def _queues(rows: HtaRows, rank: int) -> tuple[HtaQueue, ...] | HtaFailure:
    """Launches add one to their device work's stream, its start takes one away."""
    named = np.array([n in _LAUNCHES for n in rows.events.names] or [False])
    calls = np.flatnonzero(named[rows.events.name[rows.index]] & (rows.link > 0))
    correlation = rows.correlation
    work = np.flatnonzero(rows.stream != NONE)
    work = work[np.isin(correlation[work], correlation[calls])]
    by_key = work[np.argsort(correlation[work], kind="stable")]
    keys = correlation[by_key]
    low = np.searchsorted(keys, correlation[calls], side="left")
    count = np.searchsorted(keys, correlation[calls], side="right") - low
    if np.maximum(count, 1).sum() != len(work):
        return HtaFailure(raises="AssertionError", why=f"rank {rank}: launches and their kernels do not pair up")
    calls = np.repeat(calls, count)
    order_in_group = np.arange(len(calls)) - np.repeat(np.cumsum(count) - count, count)
    streams = rows.stream[by_key[np.repeat(low, count) + order_in_group]]
    time = np.concatenate([rows.start_us[calls], rows.start_us[work]])
    stream = np.concatenate([streams, rows.stream[work]])
    change = np.repeat(np.array([1, -1]), [len(calls), len(work)])
    order = _unstable_order(time)
    stream, change = stream[order], change[order]
    return tuple(
        HtaQueue(rank=rank, stream=s, length=describe(np.cumsum(change[stream == s])))
        for s in np.unique(stream).tolist()
    )


def _bandwidths(rows: HtaRows, mask: Mask, rank: int) -> tuple[HtaBandwidth, ...]:
    """The running sum of recorded bandwidths per kind of copy, at every change where it is above 0."""
    recorded = rows.events.copy_gb_per_s
    speed = np.array([recorded.get(i, 0.0) for i in rows.index[mask].tolist()], dtype=np.float64)
    kind = np.array([_copy_kind(n) for n in rows.names(mask)])
    start, duration = rows.start_us[mask], rows.dur_us[mask]
    end = start + np.where(duration == 0, 1.0, duration)
    time = np.concatenate([start, end])
    order = _unstable_order(time)
    change, kinds = np.concatenate([speed, -speed])[order], np.concatenate([kind, kind])[order]
    found = []
    for name in np.unique(kinds).tolist():
        level = np.cumsum(change[kinds == name])
        if (level > 0).any():
            found.append(HtaBandwidth(rank=rank, name=name, gb_per_s=describe(level[level > 0])))
    return tuple(found)


def _copy_kind(name: str) -> str:
    if name.startswith("Memset"):
        return "Memset"
    return name[: len("Memcpy DtoH")] if name.startswith("Memcpy") else "Memcpy Unknown"


def _unstable_order(times: Floats) -> Ints:
    """The order that pandas sorts by: among equal times numpy's, which differs between processors."""
    whole = bool(np.all(times == np.floor(times)))
    return np.argsort(times.astype(np.int64) if whole else times, kind="quicksort")


def describe(values: Ints | Floats) -> HtaDescription:
    """Count, mean, sample standard deviation, extremes and linear quartiles of at least one value."""
    p25, p50, p75 = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
    return HtaDescription(
        count=len(values),
        mean=float(values.mean()),
        std=float(values.std(ddof=1)) if len(values) > 1 else None,
        min=float(values.min()),
        p25=p25,
        p50=p50,
        p75=p75,
        max=float(values.max()),
    )


def _percent(part: float, whole: float, digits: int) -> float | None:
    return float(np.round(100 * (part / whole), digits)) if whole else None


def _joined(parts: Sequence[tuple[_Row, ...] | HtaFailure]) -> tuple[_Row, ...] | HtaFailure:
    """One rank's exception is the whole table's."""
    rows: list[_Row] = []
    for part in parts:
        if isinstance(part, HtaFailure):
            return part
        rows += part
    return tuple(rows)
