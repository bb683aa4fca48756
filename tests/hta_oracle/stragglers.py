"""HolisticTraceAnalysis 0.5.0's potential stragglers: the latest starts of one kernel, with no test of anything."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from tests.hta_oracle.records import HtaFailure
from tests.hta_oracle.rows import HtaRows

from stepscope.core.dataclass import dataclass

CANDIDATES = 2
_LONG_FRACTION = 0.01  # of a step: shorter kernels are not looked at

_Place = tuple[int, int, str]  # stream, step, name


@dataclass(frozen=True, slots=True, kw_only=True)
class CommKernels:
    """What the choice needs of one rank: its NCCL kernels inside steps, and how far its steps reach.

    ``kernels``: (place, start_us, dur_us) in HTA's order of rows.
    """

    rank: int
    announced: frozenset[int]  # steps whose annotation survived the filter
    present: frozenset[int]  # announced steps that rows belong to
    first_us: float
    last_us: float
    kernels: tuple[tuple[_Place, float, float], ...]


def comm_kernels(rows: HtaRows, rank: int) -> CommKernels:
    """The kernels named ``ncclKernel...`` (not ``ncclDevKernel...``) on streams above 0, in steps above 0."""
    names = rows.events.names
    codes = rows.events.name[rows.index]
    announced = frozenset(np.unique(rows.stated_step[rows.stated_step >= 0]).tolist())
    inside = np.isin(rows.step, list(announced))
    old_nccl = np.array([n.startswith("ncclKernel") for n in names] or [False])
    chosen = np.flatnonzero(inside & old_nccl[codes] & (rows.stream > 0) & (rows.step > 0))
    place = zip(
        rows.stream[chosen].tolist(),
        rows.step[chosen].tolist(),
        [names[c] for c in codes[chosen]],
        strict=True,
    )
    ends = rows.start_us + rows.dur_us
    return CommKernels(
        rank=rank,
        announced=announced,
        present=frozenset(np.unique(rows.step[inside]).tolist()),
        first_us=float(rows.start_us[inside].min()) if inside.any() else np.inf,
        last_us=float(ends[inside].max()) if inside.any() else -np.inf,
        kernels=tuple(zip(place, rows.start_us[chosen].tolist(), rows.dur_us[chosen].tolist(), strict=True)),
    )


def potential_stragglers(ranks: Sequence[CommKernels]) -> tuple[int, ...] | HtaFailure:
    """The ranks that start the most uneven kernel last, counted over steps: always two.

    The kernel is the (stream, name) whose last long launch in a step differs most in duration over the ranks.
    """
    if not any(r.announced for r in ranks):
        return HtaFailure(raises="ValueError", why="no ProfilerStep survives its filter")
    steps = frozenset().union(*(r.present for r in ranks))
    first = min(r.first_us for r in ranks)
    step_us = (max(r.last_us for r in ranks) - first) / len(steps)
    last: dict[_Place, dict[int, tuple[float, float]]] = defaultdict(dict)
    for rank in ranks:
        for place, start, duration in rank.kernels:
            if duration >= step_us * _LONG_FRACTION:
                last[place][rank.rank] = (start, duration)
    if not last:
        return HtaFailure(raises="ValueError", why="no long kernel is named ncclKernel...")
    chosen = _most_uneven(last, step_us)
    if chosen is None:
        return HtaFailure(raises="ValueError", why="no collective is seen on two ranks")
    per_step = {
        step: [(rank, start) for rank, (start, _) in by_rank.items()]
        for (stream, step, name), by_rank in sorted(last.items())
        if (stream, name) == chosen
    }
    if any(len(starts) < CANDIDATES for starts in per_step.values()):
        return HtaFailure(raises="IndexError", why=f"a step shows its collective on fewer than {CANDIDATES} ranks")
    late: dict[int, int] = {}
    for starts in per_step.values():
        threshold = sorted((s for _, s in starts), reverse=True)[CANDIDATES - 1]
        for number, start in starts:
            late[number] = late.get(number, 0) + (start >= threshold)
    return tuple(sorted(sorted(late), key=lambda r: -late[r])[:CANDIDATES])


def _most_uneven(last: dict[_Place, dict[int, tuple[float, float]]], step_us: float) -> tuple[int, str] | None:
    spreads: dict[tuple[int, str], list[float]] = defaultdict(list)
    for (stream, _, name), by_rank in last.items():
        if len(by_rank) > 1:
            spreads[stream, name].append(float(np.std([d / step_us for _, d in by_rank.values()], ddof=1)))
    if not spreads:
        return None
    return max(sorted(spreads), key=lambda key: float(np.mean(spreads[key])))
