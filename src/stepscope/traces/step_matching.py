"""Which steps of one rank are which of another's, and which collective of a step is which: by operation, size and sequence.

gloo starts collectives from several threads, so that their starts have no order in common; the calls of one step have.
Where the ranks' profilers count the same steps, their numbers are right even if clocks or contention say otherwise; where
they do not (one began a step later), what was called and, on one clock, what can have happened decide.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import dataclass
from stepscope.stats.spans import distinct, median
from stepscope.traces.order_matching import RankOrder

Ints = NDArray[np.int64]

Place = tuple[int, int, int, int]
"""Step, operation, size, and how many of these the step called before."""

_KNOWN = 0.9  # share of the collectives whose step must be known
_ALIKE = 0.9  # share of the common steps' collectives that must find their like
_FURTHEST = 8  # steps tried to both sides
_IMPOSSIBLE = 0.1  # share of pairs that one rank may have left before the other entered, on one clock

COUNTED = 0.97
"""Confidence where step numbers and calls agree on one clock."""

_UNSEEN = 0.9  # on clocks that are not known to be one
_MOVED = 0.8  # where the numbers are off by some steps


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShift:
    """The other rank's step s is the reference's s + ``steps``."""

    steps: int
    confidence: float


def places(line: RankOrder) -> list[Place]:
    """Where each collective stands: the same on all ranks that recorded the step, whatever thread began it."""
    order = np.lexsort((np.arange(len(line)), line.called_ns, line.size, line.op, line.step))
    kinds = np.stack([line.step[order], line.op[order], line.size[order]])
    fresh = np.ones(len(line), dtype=bool)
    fresh[1:] = (kinds[:, 1:] != kinds[:, :-1]).any(axis=0)
    first = np.maximum.accumulate(np.where(fresh, np.arange(len(line)), 0))
    count = np.empty(len(line), dtype=np.int64)
    count[order] = np.arange(len(line)) - first
    return list(zip(line.step.tolist(), line.op.tolist(), line.size.tolist(), count.tolist(), strict=True))


def step_shift(reference: RankOrder, other: RankOrder, *, one_clock: bool) -> StepShift | None:
    """How the steps of two ranks lie to each other; None where steps are not marked, or their calls do not agree. Ranks
    that recorded different steps have none in common: nothing of them is joined."""
    if not len(reference) or not len(other):
        return None
    if min((reference.step >= 0).mean(), (other.step >= 0).mean()) < _KNOWN:
        return None
    there = {place: i for i, place in enumerate(places(reference))}
    here = places(other)
    numbers = set(distinct(reference.step).tolist())
    mine = distinct(other.step).tolist()
    disjoint = numbers.isdisjoint(mine)
    if disjoint and not one_clock:
        return StepShift(steps=0, confidence=_UNSEEN)
    apart = [min(numbers) - min(mine), max(numbers) - max(mine)]
    tried = sorted({*range(-_FURTHEST, _FURTHEST + 1), *apart}, key=lambda d: (abs(d), d))
    found: list[_Joined] = []
    for steps in tried:
        if (common := sum(s + steps in numbers for s in mine)) and 2 * common >= min(len(numbers), len(mine)):
            joined = _joined(reference, other, there, here, numbers, steps)
            if steps == 0 and joined.alike == 1.0 and not (one_clock and joined.impossible > _IMPOSSIBLE):
                return StepShift(steps=0, confidence=COUNTED if one_clock else _UNSEEN)
            found.append(joined)
    best = max((f.alike for f in found), default=0.0)
    if best < _ALIKE:
        return StepShift(steps=0, confidence=_UNSEEN) if disjoint else None
    alike = [f for f in found if f.alike >= best - 1e-9]
    chosen = alike[0]
    if one_clock and chosen.impossible > _IMPOSSIBLE:
        chosen = min(alike, key=lambda f: (f.impossible, f.apart_ns))
        if chosen.impossible > _IMPOSSIBLE:
            return StepShift(steps=0, confidence=_UNSEEN) if disjoint else None
    if chosen.steps:
        return StepShift(steps=chosen.steps, confidence=_MOVED)
    return StepShift(steps=0, confidence=COUNTED if one_clock else _UNSEEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Joined:
    steps: int
    alike: float
    impossible: float
    apart_ns: float


def _joined(
    reference: RankOrder, other: RankOrder, there: dict[Place, int], here: list[Place], numbers: set[int], steps: int
) -> _Joined:
    """The ranks with the other's steps moved by ``steps``: how many calls of the common steps find their like, how many
    pairs of those that all ranks leave together cannot have been one collective, and how far their ends lie apart."""
    pairs: list[tuple[int, int]] = []
    among = 0
    for j, (step, op, size, count) in enumerate(here):
        if step + steps not in numbers:
            continue
        among += 1
        i = there.get((step + steps, op, size, count))
        if i is not None:
            pairs.append((i, j))
    if not pairs:
        return _Joined(steps=steps, alike=0.0, impossible=1.0, apart_ns=np.inf)
    a, b = np.array(pairs, dtype=np.int64).T
    never = np.maximum(reference.starts_ns[a], other.starts_ns[b]) > np.minimum(reference.ends_ns[a], other.ends_ns[b])
    never = never[reference.together[a]]
    return _Joined(
        steps=steps,
        alike=len(pairs) / among,
        impossible=float(never.mean()) if never.size else 0.0,
        apart_ns=abs(median(other.ends_ns[b] - reference.ends_ns[a])),
    )
