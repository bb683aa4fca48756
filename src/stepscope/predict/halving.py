"""Which of several configurations is the fastest, by successive halving: all a little, the better half longer, and so on.

Pure: what is measured comes from the caller. The baseline is measured in every rung beside the others, as a machine changes
in between. Jamieson and Talwalkar, Non-stochastic best arm identification and hyperparameter optimization, AISTATS 2016.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from stepscope.core.dataclass import record
from stepscope.records.nouns import Estimate

SAME = 0.01
"""Configurations whose times differ by less are equally fast: so do repeated runs of one (results/comparing.py)."""

BASELINE = "baseline"


@record
class Contender:
    """A configuration. gain: throughput / the baseline's as predicted; None: nobody can say. changes: settings that are
    other than the baseline's: of equals the one with fewer wins."""

    key: str
    gain: float | None = None
    changes: int = 1


@record
class Lost:
    """Why a configuration is out: it failed, learned too little, or was slower."""

    reason: str


Score = Estimate | Lost
"""Time of a sample, ns, with its 95% interval; or why there is none."""

Measure = Callable[[int, Sequence[str]], Mapping[str, Score]]
"""Measures these configurations, the baseline first, in a rung (1, 2, ...; each twice as long as the one before)."""


@record
class Found:
    """What a search came to. best: key of the fastest, ``BASELINE`` where none is surely faster. lost: why each other one
    is out. scores: by rung.
    """

    best: str
    lost: Mapping[str, str]
    scores: tuple[Mapping[str, Score], ...]


def chosen(candidates: Sequence[Contender], most: int) -> tuple[list[Contender], list[Contender]]:
    """Return (those to try, those left out). The best predicted gain comes first, of equals the one with fewer changes, then
    those of which nothing is predicted. Left out are predicted gains below ``SAME``, and what is beyond ``most``."""
    predicted = [c for c in candidates if c.gain is not None and c.gain >= 1 + SAME]
    predicted.sort(key=lambda c: (-round(math.log(c.gain or 1.0) / SAME), c.changes))
    unknown = [c for c in candidates if c.gain is None]
    kept = [*predicted, *unknown][:most]
    return kept, [c for c in candidates if c not in kept]


def better(a: Estimate, b: Estimate) -> bool:
    """Whether ``a`` is shorter than ``b`` beyond doubt: the intervals part, or without intervals by more than ``SAME``."""
    surely = a.below(b)
    return a.value < b.value * (1 - SAME) and (True if surely is None else surely)


def ranked(scores: Mapping[str, Score], changes: Mapping[str, int]) -> list[str]:
    """Order those with a score, the fastest first; within ``SAME`` of the fastest of a group the one with fewer changes."""
    left = sorted(
        ((key, score) for key, score in scores.items() if isinstance(score, Estimate)), key=lambda item: item[1].value
    )
    order: list[str] = []
    while left:
        limit = left[0][1].value * (1 + SAME)
        group = [item for item in left if item[1].value <= limit]
        order += [key for key, _ in sorted(group, key=lambda item: (changes.get(item[0], 0), item[1].value))]
        left = left[len(group) :]
    return order


RUNGS = 3
"""Most rungs of a search."""


def search(candidates: Sequence[Contender], measure: Measure) -> Found:
    """Measure all, keep the better half of those that are not surely slower than the baseline, and so on.

    The last rung is that of one candidate, or number ``RUNGS``. Candidates that lose there are named with their time.
    """
    changes = {BASELINE: 0} | {c.key: c.changes for c in candidates}
    left, lost, all_scores = [c.key for c in candidates], dict[str, str](), list[Mapping[str, Score]]()
    scores: Mapping[str, Score] = {}

    def outcome(best: str) -> Found:
        return Found(best=best, lost=lost, scores=tuple(all_scores))

    for rung in range(1, RUNGS + 1):
        if not left:
            break
        scores = measure(rung, (BASELINE, *left))
        all_scores.append(scores)
        base = scores[BASELINE]
        if isinstance(base, Lost):
            lost |= dict.fromkeys(left, f"no baseline: {base.reason}")
            return outcome(BASELINE)
        for key in list(left):
            score = scores[key]
            if isinstance(score, Lost):
                lost[key] = score.reason
            elif better(base, score):
                lost[key] = f"slower than the baseline: {score.value / base.value:.2f}x the time of a sample"
            else:
                continue
            left.remove(key)
        order = [key for key in ranked(scores, changes) if key in left]
        alone = len(left) <= 1
        for key in order[math.ceil(len(order) / 2) :] if rung < RUNGS else []:
            if len(order) > 1:
                lost[key] = _why_behind(scores, key, order[0])
                left.remove(key)
        if alone and rung > 1:
            break
    base = scores.get(BASELINE, Lost(reason="nothing was measured"))
    order = [key for key in ranked(scores, changes) if key in left]
    if not order or isinstance(base, Lost):
        return outcome(BASELINE)
    best, score = order[0], scores[order[0]]
    assert isinstance(score, Estimate)
    lost |= {key: _why_behind(scores, key, best) for key in order[1:]}
    if not better(score, base):
        lost[best] = f"not surely faster than the baseline: {score.value / base.value:.2f}x the time of a sample"
        return outcome(BASELINE)
    return outcome(best)


def _why_behind(scores: Mapping[str, Score], key: str, fastest: str) -> str:
    """Say why a candidate lost to the fastest, both measured."""
    a, b = scores[key], scores[fastest]
    assert isinstance(a, Estimate)
    assert isinstance(b, Estimate)
    return f"slower than the fastest: {a.value / b.value:.2f}x the time of a sample"
