"""Which collective of one rank is which of another's, when nothing numbers them: by order, kind and time.

Capture windows may be shifted against each other (a rank recorded three more at its start), steps repeat
themselves, and clocks may differ. A shift is judged by what was called (op and bytes must agree) and by the ends
of the collectives: seen from the right shift their difference is steady, from a wrong one it jumps about.

Which steps of one rank are which of another's, and which collective of a step is which: by operation, size and sequence.

gloo starts collectives from several threads, so that their starts have no order in common; the calls of one step have.
Where the ranks' profilers count the same steps, their numbers are right even if clocks or contention say otherwise; where
they do not (one began a step later), what was called and, on one clock, what can have happened decide.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import dataclass, record
from stepscope.stats.spans import distinct, median
from stepscope.traces.events import Ints

NEAR_SHIFTS = 64
"""Shifts tried around none; larger ones are found through time and rare collectives."""

_SAME_STEP = 0.9  # share of collectives; one launched at the edge of a step may count to its neighbour
_SAMPLES = 2048  # positions that judge a shift
_STEADY_NS = 20_000  # steadiness below which two shifts cannot be told apart by it
_NEIGHBOURS = 16
_CLOSE_NS = 5_000_000  # matched ends are never farther apart than this, on agreed clocks
_PROVEN = 0.97  # order alone never proves that two belong together
_BY_STEP = 0.9  # nor do the step numbers that each rank's profiler counts for itself
_AGAINST_TIME = 0.7  # step numbers say one shift, clocks of unknown hosts by chance another
_GUESSED = 0.4


@dataclass(frozen=True, kw_only=True)
class RankOrder:
    """The collectives of one rank in one group, in order of start. All of shape (n,).

    op, size: codes, 0 where unknown or where ranks may differ; both must agree between ranks unless 0. together: no rank can
    leave before every rank entered. called_ns: when the host called it, its start where that is not recorded.
    """

    op: Ints
    together: NDArray[np.bool_]
    size: Ints
    step: Ints  # number of the profiler's step, -1 where unknown
    starts_ns: Ints
    ends_ns: Ints
    called_ns: Ints

    def __len__(self) -> int:
        return len(self.op)


class Pairing(NamedTuple):
    """``to``: index in the reference for each collective of the other, -1 for none; how it was found, how sure."""

    to: Ints
    method: str  # order | order_shifted | order_and_time
    confidence: float


def pair(reference: RankOrder, other: RankOrder, *, one_clock: bool) -> Pairing:
    """Pair the collectives of two ranks. ``one_clock``: both show the same clock, as ranks of a host do.

    With ``order_shifted`` the indices may lie outside the reference: before its first or after its last.
    O(n log n).
    """
    best = _best_shift(reference, other, one_clock=one_clock)
    if best.agreement == 1.0:
        to = np.arange(len(other), dtype=np.int64) + best.shift
        return Pairing(to, "order_shifted" if best.shift else "order", best.confidence)
    return _pairing_by_time(reference, other, one_clock=one_clock)


@record
class _Shift:
    shift: int  # other's j is reference's j + shift
    agreement: float
    spread_ns: float
    offset_ns: float
    same_step: float = 0.0
    confidence: float = 0.0


def _best_shift(reference: RankOrder, other: RankOrder, *, one_clock: bool) -> _Shift:
    """The shift under which most agree in kind; of several, the one in time if clocks agree, else the one under
    which the step numbers agree, else the steadiest. Confidence falls with how well the next best would do."""
    plain = _judged_shift(reference, other, 0)
    if len(reference) == len(other) and plain.agreement == 1.0 and _ends_are_near(reference, plain):
        return replace(plain, confidence=_PROVEN)
    shifts = _candidate_shifts(reference, other)
    agreements = [_kind_agreement(reference, other, s) for s in shifts]
    highest = max(agreements)
    alike = [_judged_shift(reference, other, s) for s, a in zip(shifts, agreements, strict=True) if a >= highest - 1e-9]
    closest = min(alike, key=lambda j: (abs(j.offset_ns) + j.spread_ns, abs(j.shift)))
    numbered = [j for j in alike if j.same_step >= _SAME_STEP]
    in_time = one_clock or _ends_are_near(reference, closest)
    if in_time and (one_clock or closest in numbered or len(numbered) != 1):
        return replace(closest, confidence=_match_confidence([abs(j.offset_ns) + j.spread_ns for j in alike]))
    if len(numbered) == 1 and len(alike) > 1:
        return replace(numbered[0], confidence=_AGAINST_TIME if in_time else _BY_STEP)
    among = numbered or alike
    steady = 1.5 * min(j.spread_ns for j in among) + _STEADY_NS
    best = min(among, key=lambda j: (j.spread_ns > steady, abs(j.offset_ns), abs(j.shift)))
    return replace(best, confidence=_match_confidence([j.spread_ns for j in among]))


def _match_confidence(costs: list[float]) -> float:
    """Return _PROVEN where the least cost is far below the next, _GUESSED where both are alike."""
    costs = sorted(costs)
    doubt = min(1.0, (costs[0] + 1) / (costs[1] + 1)) if len(costs) > 1 else 0.0
    return _PROVEN - (_PROVEN - _GUESSED) * doubt


def _ends_are_near(reference: RankOrder, judged: _Shift) -> bool:
    """Whether the ends lie so close that a shift by one would lie farther off: no other shift needs a look."""
    if len(reference) < 2:
        return True
    spacing = median(np.diff(np.sort(reference.ends_ns)))
    return abs(judged.offset_ns) + judged.spread_ns < spacing / 4


def _candidate_shifts(reference: RankOrder, other: RankOrder) -> list[int]:
    """Return the shifts worth a look: near 0, near the difference in length, near what time and rare calls suggest."""
    n, m = len(reference), len(other)
    tried = set(range(-NEAR_SHIFTS, NEAR_SHIFTS + 1)) | {n - m + k for k in range(-2, 3)}
    order, near = _order_and_nearest(reference, other)
    by_time = order[np.minimum(near, n - 1)] - np.arange(m)
    values, counts = np.unique(by_time, return_counts=True)
    common = int(values[np.argmax(counts)])
    tried |= {common + k for k in range(-2, 3)}
    tried |= _rare_shifts(reference, other)
    least = (min(n, m) + 1) // 2
    return sorted(s for s in tried if min(n, m + s) - max(0, s) >= least) or [0]


def _order_and_nearest(reference: RankOrder, other: RankOrder) -> tuple[Ints, Ints]:
    """Return the reference's collectives in the order of their ends, and the place in it of each of the other's."""
    order = np.argsort(reference.ends_ns, kind="stable")
    return order, np.searchsorted(reference.ends_ns[order], other.ends_ns)


def _rare_shifts(reference: RankOrder, other: RankOrder) -> set[int]:
    """Shifts that lay the other's rarest kind of collective over the reference's of that kind."""
    kinds = np.concatenate([np.stack([reference.op, reference.size], axis=1), np.stack([other.op, other.size], axis=1)])
    _, code = np.unique(kinds, axis=0, return_inverse=True)
    code = code.ravel()
    theirs, ours = code[: len(reference)], code[len(reference) :]
    shared = distinct(theirs[np.isin(theirs, ours)])
    if not len(shared):
        return set()
    rarity = np.bincount(ours, minlength=int(code.max()) + 1)
    rarest = int(shared[np.argmin(rarity[shared])])
    at, there = np.flatnonzero(ours == rarest)[:3], np.flatnonzero(theirs == rarest)[:NEAR_SHIFTS]
    return set(np.subtract.outer(there, at).ravel().tolist())


def _overlap_slices(reference: RankOrder, other: RankOrder, shift: int) -> tuple[slice, slice]:
    low, high = max(0, shift), max(0, shift, min(len(reference), len(other) + shift))
    return slice(low, high), slice(low - shift, high - shift)


def _kind_agreement(reference: RankOrder, other: RankOrder, shift: int) -> float:
    """Share of the overlap in which both ranks did the same kind of thing; 0 without overlap."""
    a, b = _overlap_slices(reference, other, shift)
    if a.start == a.stop:
        return 0.0
    agree = _compatible_mask(reference.op[a], other.op[b]) & _compatible_mask(reference.size[a], other.size[b])
    return int(np.count_nonzero(agree)) / len(agree)


def _judged_shift(reference: RankOrder, other: RankOrder, shift: int) -> _Shift:
    """Return how well a shift fits: share of the same kind, spread of the ends in ns, share in the same step."""
    a, b = _overlap_slices(reference, other, shift)
    if a.start == a.stop:
        return _Shift(shift=shift, agreement=0.0, spread_ns=np.inf, offset_ns=np.inf)
    stride = max(1, (a.stop - a.start) // _SAMPLES)
    apart = (other.ends_ns[b] - reference.ends_ns[a])[::stride].astype(np.float64)
    steps = (reference.step[a] == other.step[b]) & (other.step[b] >= 0)
    return _Shift(
        shift=shift,
        agreement=_kind_agreement(reference, other, shift),
        spread_ns=_typical_jump(apart),
        offset_ns=median(apart),
        same_step=int(np.count_nonzero(steps)) / len(steps),
    )


def _typical_jump(apart: NDArray[np.float64]) -> float:
    """Typical jump of a series from one value to the next: indifferent to offset and drift, mild on outliers."""
    if len(apart) < 2:
        return 0.0
    return float(np.mean(np.sqrt(np.abs(np.diff(apart)))) ** 2)


def _compatible_mask(a: Ints, b: Ints) -> NDArray[np.bool_]:
    return np.asarray((a == b) | (a == 0) | (b == 0), dtype=np.bool_)


def _pairing_by_time(reference: RankOrder, other: RankOrder, *, one_clock: bool) -> Pairing:
    """Pair the nearest ends of the same kind, both ways, where either side has gaps (lost events, sampled traces).

    How far the clocks are apart is voted for by all pairs of one kind that lie near each other.
    """
    to = np.full(len(other), -1, dtype=np.int64)
    ours, theirs = _neighbour_pairs(reference, other)
    if not len(ours):
        return Pairing(to, "order_and_time", 0.0)
    apart = other.ends_ns[ours] - reference.ends_ns[theirs]
    spacing = median(np.diff(np.sort(reference.ends_ns))) if len(reference) > 1 else np.inf
    close = min(max(spacing / 4, 50_000.0), _CLOSE_NS)
    offset, sure = (0.0, True) if one_clock else _voted_difference(apart, close)
    error = np.abs(apart - offset)
    kept = error <= close
    ours, theirs, error = ours[kept], theirs[kept], error[kept]
    order = np.lexsort((theirs, ours, error))
    taken = set()
    for j, i in zip(ours[order].tolist(), theirs[order].tolist(), strict=True):
        if to[j] == -1 and i not in taken:
            to[j] = i
            taken.add(i)
    return Pairing(to, "order_and_time", 0.9 if sure else 0.5)


def _neighbour_pairs(reference: RankOrder, other: RankOrder) -> tuple[Ints, Ints]:
    """Pairs (other's index, reference's index) of one kind, the nearest few in time of each."""
    order, near = _order_and_nearest(reference, other)
    steps = np.arange(-_NEIGHBOURS, _NEIGHBOURS)
    there = near[:, None] + steps[None, :]
    valid = (there >= 0) & (there < len(reference))
    ours = np.repeat(np.arange(len(other)), len(steps))[valid.ravel()]
    theirs = order[there.ravel()[valid.ravel()]]
    alike = _compatible_mask(reference.op[theirs], other.op[ours])
    alike &= _compatible_mask(reference.size[theirs], other.size[ours])
    return ours[alike], theirs[alike]


def _voted_difference(apart: Ints, close: float) -> tuple[float, bool]:
    """The difference around which most values lie within ``close``, and whether no other has nearly as many."""
    values = np.sort(apart).astype(np.float64)
    reach = np.searchsorted(values, values + close, side="right") - np.arange(len(values))
    first = int(np.argmax(reach))
    inside = values[first : first + int(reach[first])]
    away = (values < inside[0] - close) | (values > inside[-1] + close)
    rival = int(reach[away].max()) if away.any() else 0
    return median(inside), bool(len(inside) >= 3 and rival <= 0.7 * len(inside))


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


class StepShift(NamedTuple):
    """The other rank's step s is the reference's s + ``steps``."""

    steps: int
    confidence: float


def places(line: RankOrder) -> list[Place]:
    """Return where each collective stands: the same on all ranks that recorded the step, whatever thread began it."""
    order = np.lexsort((np.arange(len(line)), line.called_ns, line.size, line.op, line.step))
    kinds = np.stack([line.step[order], line.op[order], line.size[order]])
    fresh = np.ones(len(line), dtype=bool)
    fresh[1:] = (kinds[:, 1:] != kinds[:, :-1]).any(axis=0)
    first = np.maximum.accumulate(np.where(fresh, np.arange(len(line)), 0))
    count = np.empty(len(line), dtype=np.int64)
    count[order] = np.arange(len(line)) - first
    return list(zip(line.step.tolist(), line.op.tolist(), line.size.tolist(), count.tolist(), strict=True))


def step_shift(reference: RankOrder, other: RankOrder, *, one_clock: bool) -> StepShift | None:
    """Find how the steps of two ranks lie to each other; None where steps are not marked, or their calls do not agree. Ranks
    that recorded different steps have none in common: nothing of them is joined."""
    if not len(reference) or not len(other):
        return None
    if min((reference.step >= 0).mean(), (other.step >= 0).mean()) < _KNOWN:
        return None
    there = {place: i for i, place in enumerate(places(reference))}
    here = places(other)
    numbers = set(distinct(reference.step).tolist())
    other_steps = distinct(other.step).tolist()
    unjoined = StepShift(0, _UNSEEN) if numbers.isdisjoint(other_steps) else None
    same = StepShift(0, COUNTED if one_clock else _UNSEEN)
    if unjoined and not one_clock:
        return unjoined

    def possible(joined: _Joined) -> bool:
        return not one_clock or joined.impossible <= _IMPOSSIBLE

    apart = [min(numbers) - min(other_steps), max(numbers) - max(other_steps)]
    tried = sorted({*range(-_FURTHEST, _FURTHEST + 1), *apart}, key=lambda d: (abs(d), d))
    joins: list[_Joined] = []
    for steps in tried:
        if (common := sum(s + steps in numbers for s in other_steps)) and 2 * common >= min(
            len(numbers), len(other_steps)
        ):
            joined = _joined_steps(reference, other, there, here, numbers, steps)
            if steps == 0 and joined.alike == 1.0 and possible(joined):
                return same
            joins.append(joined)
    best = max((f.alike for f in joins), default=0.0)
    if best < _ALIKE:
        return unjoined
    alike = [f for f in joins if f.alike >= best - 1e-9]
    chosen = alike[0] if possible(alike[0]) else min(alike, key=lambda f: (f.impossible, f.apart_ns))
    if not possible(chosen):
        return unjoined
    return StepShift(chosen.steps, _MOVED) if chosen.steps else same


@record
class _Joined:
    steps: int
    alike: float
    impossible: float
    apart_ns: float


def _joined_steps(
    reference: RankOrder, other: RankOrder, there: dict[Place, int], here: list[Place], numbers: set[int], steps: int
) -> _Joined:
    """Compare the ranks with the other's steps moved by ``steps``: how many calls of the common steps find their like, how
    many pairs of those that all ranks leave together cannot have been one collective, and how far their ends lie apart."""
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
