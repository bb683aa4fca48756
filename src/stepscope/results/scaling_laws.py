"""Amdahl's law and the universal scalability law, fitted to measured speed-ups.

Throughput of n ranks in both: X(n) = L n / (1 + s (n - 1) + k n (n - 1)). s is the serial fraction of Amdahl (1967),
Gunther's contention; k, 0 in Amdahl's law, the cost of every rank talking to every other (Gunther, A General Theory of
Computational Scalability, 2008). n / X is linear in 1/L, s/L and k/L, so the fit is a closed form.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import record
from stepscope.core.errors import Unavailable
from stepscope.records.nouns import Estimate
from stepscope.stats.compare import RESAMPLES, percentile_interval
from stepscope.stats.measured import BOOTSTRAP_SEED

MIN_SIZES = 4
"""Different numbers of ranks: with three, the three parameters of the law pass through any three points."""

_Z95 = 1.959964
_WIDEST = 3.0  # of log(time) that one draw may be off: beyond it the interval is "anything" anyway

Floats = NDArray[np.float64]


@record
class SizePoint:
    """One measured size. speedup: throughput on ``world_size`` ranks relative to one of the points."""

    world_size: int
    speedup: Estimate


@record
class ScalingLaw:
    """A fitted law. serial_fraction: s; coherency: k, 0 and no interval in Amdahl's law.

    max_relative_error: of the fitted throughput at the measured sizes. sizes: how many there were.
    """

    serial_fraction: Estimate
    coherency: Estimate
    max_relative_error: float
    sizes: int

    def efficiency(self, world_size: float) -> float:
        """Return the throughput of ``world_size`` ranks over that many times one rank's."""
        more = world_size - 1
        return 1.0 / (1.0 + self.serial_fraction.value * more + self.coherency.value * world_size * more)

    @property
    def most_speedup(self) -> float | None:
        """Largest speed-up of any number of ranks: at the peak, or 1 / s; None: the fit shows no limit."""
        if self.coherency.value > 0:
            peak = self.best_world_size or 1.0
            return peak * self.efficiency(peak)
        return 1.0 / self.serial_fraction.value if self.serial_fraction.value > 0 else None

    @property
    def best_world_size(self) -> float | None:
        """Ranks beyond which more are slower: sqrt((1 - s) / k), at least 1; None without coherency."""
        if self.coherency.value <= 0:
            return None
        return math.sqrt(max(1.0, (1.0 - self.serial_fraction.value) / self.coherency.value))


def fit_amdahl(points: Sequence[SizePoint]) -> ScalingLaw | Unavailable:
    """Fit Amdahl's law through ``points`` by least relative squares of the time; refused below 4 different sizes.

    Interval: parametric bootstrap. Each point is drawn again with the larger of its own measured spread and the fit's
    residual (then Student's t with the degrees of freedom left over). s is not negative.
    """
    return _fitted_law(points, coherency=False)


def fit_usl(points: Sequence[SizePoint]) -> ScalingLaw | Unavailable:
    """Fit the universal scalability law, otherwise as :func:`fit_amdahl`; neither s nor k is negative."""
    return _fitted_law(points, coherency=True)


def _fitted_law(points: Sequence[SizePoint], *, coherency: bool) -> ScalingLaw | Unavailable:
    """Return the law fitted to these points, with intervals of resampled times. coherency: whether it has that term."""
    usable = [p for p in points if p.world_size >= 1 and p.speedup.value > 0 and math.isfinite(p.speedup.value)]
    sizes = len({p.world_size for p in usable})
    if sizes < MIN_SIZES:
        counts = ", ".join(str(n) for n in sorted({p.world_size for p in usable})) or "none"
        return Unavailable(f"{sizes} different numbers of ranks ({counts}): a scaling law needs at least {MIN_SIZES}")
    n = np.array([p.world_size for p in usable], dtype=np.float64)
    time = n / np.array([p.speedup.value for p in usable])
    columns = [np.ones_like(n), n - 1.0, n * (n - 1.0)][: 3 if coherency else 2]
    design = np.stack(columns, axis=1) / time[:, None]  # relative to the measured time: every size counts the same
    best = _nonnegative_solution(design, np.ones((n.size, 1)))[:, 0]
    residual = design @ best - 1.0
    free = n.size - design.shape[1]
    draws = _drawn_times(usable, float(np.sqrt((residual**2).sum() / free)), free)
    solved = _nonnegative_solution(design, draws.T)
    error = float(np.abs(1.0 / (residual + 1.0) - 1.0).max())
    return ScalingLaw(
        serial_fraction=_parameter_estimate(best, solved, 1),
        coherency=_parameter_estimate(best, solved, 2) if coherency else Estimate(value=0.0),
        max_relative_error=error,
        sizes=sizes,
    )


def _parameter_estimate(best: Floats, solved: Floats, index: int) -> Estimate:
    low, high = percentile_interval(solved[index] / solved[0])
    return Estimate(value=float(best[index] / best[0]), low=low, high=high)


def _drawn_times(points: Sequence[SizePoint], residual: float, free: int) -> Floats:
    """Draw the measured times again, relative to themselves [resamples, points]."""
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    own = np.array([_own_spread(p.speedup) for p in points])
    shape = (RESAMPLES, len(points))
    noise = np.where(own >= residual, own * rng.standard_normal(shape), residual * rng.standard_t(free, size=shape))
    return np.asarray(np.exp(np.clip(noise, -_WIDEST, _WIDEST)))


def _own_spread(speedup: Estimate) -> float:
    """Return the standard deviation of log(speed-up) that the point's own interval tells; 0 without one."""
    if speedup.low is None or speedup.high is None or speedup.low <= 0:
        return 0.0
    return math.log(speedup.high / speedup.low) / (2 * _Z95)


def _nonnegative_solution(design: Floats, targets: Floats) -> Floats:
    """Solve non-negative least squares for every column of ``targets`` [points, m] -> [parameters, m].

    At most two parameters can be held at 0 (the first, 1/L, is always positive): all subsets are solved and the best
    feasible one is taken.
    """
    width = design.shape[1]
    best = np.zeros((width, targets.shape[1]))
    least = np.full(targets.shape[1], np.inf)
    for count in range(width):
        for others in combinations(range(1, width), count):
            active = [0, *others]
            part = np.linalg.pinv(design[:, active]) @ targets
            loss = ((design[:, active] @ part - targets) ** 2).sum(axis=0)
            better = (part[1:] >= 0).all(axis=0) & (loss < least)
            least = np.where(better, loss, least)
            whole = np.zeros_like(best)
            whole[active] = part
            best = np.where(better, whole, best)
    return best
