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

from stepscope.core.dataclass import dataclass
from stepscope.core.words import grouped
from stepscope.records.finding import JobMemory, MemoryGrowth
from stepscope.records.nouns import Estimate, Measured
from stepscope.results.diary import JobSteps, Numbers
from stepscope.results.hardware import fullest
from stepscope.stats.order import slope
from stepscope.store.diary import RankDiary

Of = Literal["host", "device"]

LEAST_SAMPLES = 14
"""Fewer say nothing about a trend: of 13, memory that grows as log(step) looks linear in 1 of 100 jobs."""

BEGINS, LAST = (0.25, 0.5, 0.75, 0.9), 3
"""Of the steps that samples are there for, what is left out: warm-up; or all until something has begun to grow. Samples at
the end that lie above all that is left out then."""

FASTER = 2.0
"""Rate of what has begun to grow / rate before it."""

LEVELS = 6
LEAST_RISE, MOST_RISE = 0.4, 2.0
"""Of the mean rise: what the floor rises from each stretch to the next. Of growth like log(step) the last rise is 0.5 of the
first, and it is no growth at a rate."""

SLOWING = 0.75
"""Rate over the last two rises / over the first two: below, the memory levels off."""

ALIKE = 1.5
"""Slope of all samples / slope of the floor, at most, or as little: the floor of a sawtooth may rise by chance."""

LEAST_BYTES = 8 << 20
"""That the floor has risen by at all: below it is the noise of allocators."""

STEADY_SHARE, STEADY_S = 1e-6, 30 * 86_400.0
"""Of the resident size a step (0.1% in 1,000), and time until memory is full: a rate below and a time beyond are steady."""

POINTS = 60
"""That a line is drawn through: minima of more samples."""

PRESENT = 0.25
"""Of the steps, the last ones: whose rate is the present one."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """Of each rank its host memory and, where torch has one, its devices'; nothing of ranks that were not sampled."""
    found = (_of_rank(diary, of) for of in ("host", "device") for diary in steps.diaries)
    return tuple(each for each in found if each is not None)


def job_memory(steps: JobSteps) -> JobMemory | None:
    """What the ranks hold and what of it grows; None where nothing was sampled."""
    ranks = rank_memory(steps)
    full = fullest(steps)
    if not ranks and full is None:
        return None
    rate = max(map(_steps_per_s, steps.diaries))
    growth = tuple(found for of in ("host", "device") if (found := _growing(ranks, of, rate)) is not None)
    return JobMemory(
        host_bytes=largest(ranks, "host"),
        device_bytes=largest(ranks, "device"),
        device_used_bytes=None if full is None else full.memory_used_bytes,
        device_total_bytes=None if full is None else full.device.memory_bytes,
        growth=growth,
        steady=bool(ranks) and not growth and all(rank.level for rank in ranks),
    )


def largest(ranks: Sequence[RankMemory], of: Of) -> float | None:
    """Bytes of the rank with most; None: unknown."""
    return max((rank.bytes for rank in ranks if rank.of == of and np.isfinite(rank.bytes)), default=None)


def _of_rank(diary: RankDiary, of: Of) -> RankMemory | None:
    found = diary.samples
    # What the kernel can take back, files that are mapped, is no leak; nor is what torch keeps to allocate it again.
    held = found["resident"] - found["shared"] if of == "host" else found["allocated"]
    shown = found["resident"] if of == "host" else found["reserved"]
    left = found["available"] if of == "host" else found["device"] - found["reserved"]
    known = np.isfinite(held)
    if not known.any():
        return None
    return RankMemory(
        rank=diary.rank,
        host=diary.header.host,
        of=of,
        bytes=float(shown[known][-1]),
        left=float(left[known][-1]),
        growth=growth_of(found["step"][known], held[known]),
        level=known.sum() >= LEAST_SAMPLES
        and bool(held[known][-LAST:].min() < held[known][:-LAST].max() + LEAST_BYTES),
        samples=int(known.sum()),
    )


def growth_of(step: Numbers, held: Numbers) -> Measured | None:
    """Bytes a step by which the floor of ``held`` rises, at about the same rate all the time; None where it does not.

    Samples since the last step are left out: the loop may have ended, and what it held is being freed.
    """
    before = step < step.max(initial=0.0)
    step, held = step[before], held[before]
    if step.size < LEAST_SAMPLES:
        return None
    for share in BEGINS:
        late = step >= step[0] + share * (step[-1] - step[0])
        if share > BEGINS[0] and late.sum() < LEAST_SAMPLES:
            break
        found = _growth(step[late], held[late])
        if found is not None and (share == BEGINS[0] or _begun(step, held, late, found.value)):
            return found
    return None


def _begun(step: Numbers, held: Numbers, late: NDArray[np.bool_], rate: float) -> bool:
    """Whether what grows in the late samples did not before: a sawtooth's last ramp stays below its earlier peaks, and what
    slows down grew faster then.
    """
    before = ~late & (step >= step[0] + BEGINS[0] * (step[-1] - step[0]))
    ends = held[before][:LAST], held[before][-LAST:]
    grew = (np.median(ends[1]) - np.median(ends[0])) / max(np.ptp(step[before]), 1.0) if before.sum() > LAST else np.inf
    return bool(rate > FASTER * grew and held[late][-LAST:].min() > held[~late].max())


def _growth(step: Numbers, held: Numbers) -> Measured | None:
    """Of samples that should all be part of the growth."""
    at = np.minimum(((step - step[0]) / max(step[-1] - step[0], 1.0) * LEVELS).astype(int), LEVELS - 1)
    if np.unique(at).size < LEVELS:
        return None
    lowest = [int(np.flatnonzero(at == level)[held[at == level].argmin()]) for level in range(LEVELS)]
    floor, where = held[lowest], step[lowest]
    rises = np.diff(floor)
    if floor[-1] - floor[0] < LEAST_BYTES or not np.all(np.diff(where) > 0):
        return None
    rates = rises / np.diff(where)
    mean = (floor[-1] - floor[0]) / (where[-1] - where[0])
    first, last = ((floor[b] - floor[a]) / (where[b] - where[a]) for a, b in ((0, 2), (LEVELS - 3, LEVELS - 1)))
    if rates.min() < LEAST_RISE * mean or rates.max() > MOST_RISE * mean or last < SLOWING * first:
        return None
    parts = np.array_split(np.arange(step.size), min(POINTS, step.size))
    middle = [int(part[np.argsort(held[part], kind="stable")[part.size // 2]]) for part in parts]
    lowest = [int(part[held[part].argmin()]) for part in parts]
    all_of_it, found = slope(step[middle], held[middle]), slope(step[lowest], held[lowest])
    if found is None or all_of_it is None or (found.low is not None and found.low <= 0):
        return None
    return found if 1 / ALIKE < all_of_it.value / found.value < ALIKE else None


def _steps_per_s(diary: RankDiary) -> float:
    step, at = diary.samples["step"], diary.samples["unix_s"]
    if not step.size:
        return 0.0
    recent = step >= step[-1] - PRESENT * (step[-1] - step[0])
    took = float(np.ptp(at[recent]))
    return float(np.ptp(step[recent])) / took if took > 0 else 0.0


def _growing(ranks: Sequence[RankMemory], of: Of, rate: float) -> MemoryGrowth | None:
    """Of all ranks that grow, and when the first host, or device, is full."""
    mine = [rank for rank in ranks if rank.of == of]
    full: dict[str, float] = {}
    grow: list[RankMemory] = []
    for place, here in grouped(mine, lambda each: each.host if of == "host" else str(each.rank)).items():
        rising = [each for each in here if each.growth is not None]
        a_step = sum(each.growth.value for each in rising if each.growth is not None)
        left = min((each.left for each in here if np.isfinite(each.left)), default=None)
        full_s = None if left is None or not rate or not a_step else max(0.0, left) / (a_step * rate)
        slow = all(each.growth is None or each.growth.value < STEADY_SHARE * each.bytes for each in rising)
        if not rising or (slow and (full_s is None or full_s > STEADY_S)):
            continue
        grow += rising
        if full_s is not None:
            full[place] = full_s
    if not grow:
        return None
    grow.sort(key=lambda each: -(0.0 if each.growth is None else each.growth.value))
    first = grow[0].growth
    assert first is not None
    soonest = min(full, key=full.__getitem__, default=None)
    several = of == "host" and len({each.host for each in mine}) > 1
    return MemoryGrowth(
        of=of,
        ranks=tuple(each.rank for each in grow),
        per_step=Estimate(value=first.value, low=first.low, high=first.high),
        host=soonest if several else None,
        full_s=None if soonest is None else full[soonest],
    )
