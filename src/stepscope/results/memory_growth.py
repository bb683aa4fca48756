"""Memory of a job's ranks over time, from the samples beside its diary: what it levels off at, or by how much a step grows.

A leak raises the floor of the memory again and again; a peak (a checkpoint), a sawtooth (garbage collection) and a new level
(an evaluation, caches, the allocator's warm-up) do not. Memory is said to grow where its minima in ``LEVELS`` equal
stretches of steps rise each time, at about the same rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import record
from stepscope.core.words import grouped
from stepscope.records.finding import JobMemory, MemoryGrowth
from stepscope.records.nouns import Estimate, Measured
from stepscope.results.diary import JobSteps
from stepscope.results.hardware import fullest
from stepscope.stats.order import slope
from stepscope.stats.step_table import Numbers
from stepscope.store.diary import RankDiary

Of = Literal["host", "device"]

LEAST_SAMPLES = 14
"""Fewest samples that show a trend: of 13, memory that grows as log(step) looks linear in 1 of 100 jobs."""

BEGINS, LAST = (0.25, 0.5, 0.75, 0.9), 3
"""Shares of the sampled steps that are left out: warm-up, or all until something has begun to grow. Samples at the end that
lie above all that is left out then."""

FASTER = 2.0
"""Rate of what has begun to grow / rate before it."""

LEVELS = 6
LEAST_RISE, MOST_RISE = 0.4, 2.0
"""Least and most rise of the floor from each stretch to the next, of the mean rise. Of growth like log(step) the last rise
is 0.5 of the first, and it is no growth at a rate."""

SLOWING = 0.75
"""Rate over the last two rises / over the first two: below, the memory levels off."""

ALIKE = 1.5
"""Slope of all samples / slope of the floor, at most, or as little: the floor of a sawtooth may rise by chance."""

LEAST_BYTES = 8 << 20
"""Bytes that the floor has risen by at all: below is the noise of allocators."""

STEADY_SHARE, STEADY_S = 1e-6, 30 * 86_400.0
"""Share of the resident size a step (0.1% in 1,000), and time until memory is full: a rate below and a time beyond are
steady."""

POINTS = 60
"""Points that a line is drawn through: of more samples, their minima."""

PRESENT = 0.25
"""Share of the steps, the last ones, whose rate is the present one."""


@record
class RankMemory:
    """What one rank holds: resident bytes, or those that torch has reserved; NaN: unknown.

    growth: of the floor, bytes a step; None: it does not grow, or not at one rate. level: there are enough samples, of which
    the last do not lie above all the others. left: of the host, or of the devices.
    """

    rank: int
    host: str
    of: Of
    bytes: float
    left: float
    growth: Measured | None
    level: bool
    samples: int


@lru_cache(maxsize=2)
def rank_memory(steps: JobSteps) -> tuple[RankMemory, ...]:
    """Return the host memory of each rank and, where torch has one, its devices'; nothing of ranks that were not sampled."""
    memories = (_rank_memory(diary, of) for of in ("host", "device") for diary in steps.diaries)
    return tuple(memory for memory in memories if memory is not None)


def job_memory(steps: JobSteps) -> JobMemory | None:
    """What the ranks hold and what of it grows; None where nothing was sampled."""
    ranks = rank_memory(steps)
    full = fullest(steps)
    if not ranks and full is None:
        return None
    rate = max(map(_recent_steps_per_s, steps.diaries))
    growth = tuple(grown for of in ("host", "device") if (grown := _job_growth(ranks, of, rate)) is not None)
    return JobMemory(
        host_bytes=largest(ranks, "host"),
        device_bytes=largest(ranks, "device"),
        device_used_bytes=None if full is None else full.memory_used_bytes,
        device_total_bytes=None if full is None else full.device.memory_bytes,
        growth=growth,
        steady=bool(ranks) and not growth and all(rank.level for rank in ranks),
    )


def largest(ranks: Sequence[RankMemory], of: Of) -> float | None:
    """Return the bytes of the rank with most; None: unknown."""
    return max((rank.bytes for rank in ranks if rank.of == of and np.isfinite(rank.bytes)), default=None)


def _rank_memory(diary: RankDiary, of: Of) -> RankMemory | None:
    """Return the bytes that a rank uses and has left, and their growth; None without a sample."""
    samples = diary.samples
    # What the kernel can take back, files that are mapped, is no leak; nor is what torch keeps to allocate it again.
    in_use = samples["resident"] - samples["shared"] if of == "host" else samples["allocated"]
    shown = samples["resident"] if of == "host" else samples["reserved"]
    left = samples["available"] if of == "host" else samples["device"] - samples["reserved"]
    finite = np.isfinite(in_use)
    if not finite.any():
        return None
    return RankMemory(
        rank=diary.rank,
        host=diary.header.host,
        of=of,
        bytes=float(shown[finite][-1]),
        left=float(left[finite][-1]),
        growth=growth_of(samples["step"][finite], in_use[finite]),
        level=finite.sum() >= LEAST_SAMPLES
        and bool(in_use[finite][-LAST:].min() < in_use[finite][:-LAST].max() + LEAST_BYTES),
        samples=int(finite.sum()),
    )


def growth_of(step: Numbers, in_use: Numbers) -> Measured | None:
    """Return the bytes a step by which the floor of ``in_use`` rises, at about the same rate all the time; None where it
    does not.

    Samples since the last step are left out: the loop may have ended, and what it held is being freed.
    """
    before = step < step.max(initial=0.0)
    step, in_use = step[before], in_use[before]
    if step.size < LEAST_SAMPLES:
        return None
    for share in BEGINS:
        late = step >= step[0] + share * (step[-1] - step[0])
        if share > BEGINS[0] and late.sum() < LEAST_SAMPLES:
            break
        growth = _growth_per_step(step[late], in_use[late])
        if growth is not None and (share == BEGINS[0] or _has_begun_to_grow(step, in_use, late, growth.value)):
            return growth
    return None


def _has_begun_to_grow(step: Numbers, in_use: Numbers, late: NDArray[np.bool_], rate: float) -> bool:
    """Whether what grows in the late samples did not before: a sawtooth's last ramp stays below its earlier peaks, and what
    slows down grew faster then.
    """
    before = ~late & (step >= step[0] + BEGINS[0] * (step[-1] - step[0]))
    ends = in_use[before][:LAST], in_use[before][-LAST:]
    grew = (np.median(ends[1]) - np.median(ends[0])) / max(np.ptp(step[before]), 1.0) if before.sum() > LAST else np.inf
    return bool(rate > FASTER * grew and in_use[late][-LAST:].min() > in_use[~late].max())


def _growth_per_step(step: Numbers, in_use: Numbers) -> Measured | None:
    """Return the growth, bytes a step, of samples that should all be part of it; None where they are not."""
    at = np.minimum(((step - step[0]) / max(step[-1] - step[0], 1.0) * LEVELS).astype(int), LEVELS - 1)
    if np.unique(at).size < LEVELS:
        return None
    lowest = [int(np.flatnonzero(at == level)[in_use[at == level].argmin()]) for level in range(LEVELS)]
    floor, where = in_use[lowest], step[lowest]
    rises = np.diff(floor)
    if floor[-1] - floor[0] < LEAST_BYTES or not np.all(np.diff(where) > 0):
        return None
    rates = rises / np.diff(where)
    mean = (floor[-1] - floor[0]) / (where[-1] - where[0])
    first, last = ((floor[b] - floor[a]) / (where[b] - where[a]) for a, b in ((0, 2), (LEVELS - 3, LEVELS - 1)))
    if rates.min() < LEAST_RISE * mean or rates.max() > MOST_RISE * mean or last < SLOWING * first:
        return None
    parts = np.array_split(np.arange(step.size), min(POINTS, step.size))
    middle = [int(part[np.argsort(in_use[part], kind="stable")[part.size // 2]]) for part in parts]
    lowest = [int(part[in_use[part].argmin()]) for part in parts]
    all_of_it, lowest_slope = slope(step[middle], in_use[middle]), slope(step[lowest], in_use[lowest])
    if lowest_slope is None or all_of_it is None or (lowest_slope.low is not None and lowest_slope.low <= 0):
        return None
    return lowest_slope if 1 / ALIKE < all_of_it.value / lowest_slope.value < ALIKE else None


def _recent_steps_per_s(diary: RankDiary) -> float:
    """Return the rate of steps in the last samples; 0: none took time."""
    step, at = diary.samples["step"], diary.samples["unix_s"]
    if not step.size:
        return 0.0
    recent = step >= step[-1] - PRESENT * (step[-1] - step[0])
    took = float(np.ptp(at[recent]))
    return float(np.ptp(step[recent])) / took if took > 0 else 0.0


def _job_growth(ranks: Sequence[RankMemory], of: Of, rate: float) -> MemoryGrowth | None:
    """Describe the growth of all ranks that grow, and when the first host, or device, is full."""
    of_kind = [rank for rank in ranks if rank.of == of]
    full: dict[str, float] = {}
    grow: list[RankMemory] = []
    for place, here in grouped(of_kind, lambda rank: rank.host if of == "host" else str(rank.rank)).items():
        rising = [rank for rank in here if rank.growth is not None]
        a_step = sum(rank.growth.value for rank in rising if rank.growth is not None)
        left = min((rank.left for rank in here if np.isfinite(rank.left)), default=None)
        full_s = None if left is None or not rate or not a_step else max(0.0, left) / (a_step * rate)
        slow = all(rank.growth is None or rank.growth.value < STEADY_SHARE * rank.bytes for rank in rising)
        if not rising or (slow and (full_s is None or full_s > STEADY_S)):
            continue
        grow += rising
        if full_s is not None:
            full[place] = full_s
    if not grow:
        return None
    grow.sort(key=lambda rank: -(0.0 if rank.growth is None else rank.growth.value))
    first = grow[0].growth
    assert first is not None
    soonest = min(full, key=full.__getitem__, default=None)
    several = of == "host" and len({rank.host for rank in of_kind}) > 1
    return MemoryGrowth(
        of=of,
        ranks=tuple(rank.rank for rank in grow),
        per_step=Estimate(value=first.value, low=first.low, high=first.high),
        host=soonest if several else None,
        full_s=None if soonest is None else full[soonest],
    )
