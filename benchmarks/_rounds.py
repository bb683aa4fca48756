"""Is one faster than the other: rounds that took turns, with the A/A spread beside the ratio."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepscope.core.errors import StepscopeError, Unavailable
from stepscope.records.nouns import Estimate
from stepscope.stats.compare import MIN_REPLICATES, RESAMPLES, MannWhitney, mann_whitney, percentile_interval
from stepscope.stats.order import Samples, as_array, median_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A against B over interleaved rounds.

    ratio: median over rounds of median(A) / median(B) of the same round, with its 95% interval (None below 4
        rounds). Pairing by round takes out what drifts slowly on the machine.
    aa: the same figure for A against A, measured in the same rounds: what pure chance makes of equal code.
    aa_spread_fraction: how far the A/A interval reaches from 1; differences below it cannot be seen.
    test: Mann-Whitney U over the rounds' medians, or why it was refused.
    """

    ratio: Estimate
    aa: Estimate | None
    aa_spread_fraction: float | None
    test: MannWhitney | Unavailable
    rounds: int


def compare_rounds(
    a: Sequence[Samples],
    b: Sequence[Samples],
    *,
    a_again: Sequence[Samples] | None = None,
    rng: np.random.Generator,
) -> Comparison:
    """Ratio of medians of A to B from rounds that took turns (A, B, A, B, ...), with the A/A spread beside
    it.

    a_again: A measured a second time in every round (the same code, the same number of rounds).
    """
    ratio = _paired_ratio(a, b, rng)
    aa = None if a_again is None else _paired_ratio(a, a_again, rng)
    return Comparison(
        ratio=ratio,
        aa=aa,
        aa_spread_fraction=_spread(aa),
        test=mann_whitney(_round_medians(a), _round_medians(b)),
        rounds=len(a),
    )


def _paired_ratio(top: Sequence[Samples], bottom: Sequence[Samples], rng: np.random.Generator) -> Estimate:
    if len(top) != len(bottom) or not top:
        raise StepscopeError(f"rounds do not pair up: {len(top)} against {len(bottom)}")
    above, below = _round_medians(top), _round_medians(bottom)
    if (above <= 0).any() or (below <= 0).any():
        raise StepscopeError("a ratio of medians needs positive samples")
    logs = np.log(above / below)
    ratio = math.exp(float(np.median(logs)))
    if logs.size < MIN_REPLICATES:
        return Estimate(value=ratio)
    interval = median_interval(logs, independent=True)
    if interval is None:
        index = rng.integers(0, logs.size, size=(RESAMPLES, logs.size))
        interval = percentile_interval(np.median(logs[index], axis=1))
    return Estimate(value=ratio, low=math.exp(interval[0]), high=math.exp(interval[1]))


def _round_medians(rounds: Sequence[Samples]) -> NDArray[np.float64]:
    return np.array([float(np.median(as_array(samples))) for samples in rounds])


def _spread(aa: Estimate | None) -> float | None:
    if aa is None or aa.low is None or aa.high is None:
        return None
    return max(abs(aa.low - 1.0), abs(aa.high - 1.0))
