"""The curve of a collective: time against size where no straight line holds, with an 80% interval.

Two shapes of few parameters are fitted to log(size) and log(time) and averaged; what each leaves over is followed by a
Gaussian process of short memory that dies out away from the measured sizes. Where many sizes were measured the
measurements rule, between few of them the shapes do. x is log(bytes), y is log(ns). Both shapes rise, with slopes from 0
(latency) to 1 (bandwidth), and know nothing of a machine's speed: only how latency and bandwidth meet, as a prior on the
remaining parameters, which matters only where few sizes were measured. ``python -m benchmarks curve_fit`` has what they buy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import record
from stepscope.predict.collectives.costs import Z80
from stepscope.predict.curve_shape import as_knots, curve_time_ns, isolated, knots_between, monotone
from stepscope.predict.line_fit import checked, noise_per_size
from stepscope.records.calibration import Curve

Floats = NDArray[np.float64]
Prediction = tuple[Floats, Floats]  # mean and standard deviation of log(time) at the sizes asked for
Predictor = Callable[[Floats], Prediction]

FAMILY = "pipelined+protocols"
"""Key of the curve in a calibration."""

MIN_SIZES_TO_JUDGE = 8
"""With fewer sizes cross-validation is a lottery: the priors stand in for measurements."""

_FOLDS = 6

_DECIMALS = 7
"""Of log(time / first time), which the search sees: the same digits in every unit of time. A search among several minima
may end in another one when the last bit of its input differs."""

_PARAMETER_NOISE = 0.05  # standard deviation of log(time) around a shape: no machine follows one exactly
_MEMORY = 2.5  # natural units of log(size): deviations from a shape last over a factor of 12 or so in size
_FEW = (0.15, 0.03)
_AMPLITUDES = (0.02, 0.05, 0.1, 0.2, 0.4)
_NOISES = (0.005, 0.02)
_MOST_SD = 2.3  # a factor of 10 either way: more says nothing


@record
class _Points:
    """x = log(size), y = log(time / first time), noise_sd: standard deviation of y from measurement itself; [sizes] each.

    trusted: not mismeasured, as far as neighbours can tell.
    """

    x: Floats
    y: Floats
    noise_sd: Floats
    trusted: NDArray[np.bool_]

    def without(self, left_out: NDArray[np.bool_]) -> _Points:
        keep = ~left_out
        return _Points(x=self.x[keep], y=self.y[keep], noise_sd=self.noise_sd[keep], trusted=self.trusted[keep])


def fit_curve(
    sizes_bytes: Sequence[int] | Floats,
    times_ns: Sequence[float] | Floats,
    *,
    noise: Sequence[float] | Floats | None = None,
) -> Curve:
    """The curve through ``times_ns`` at ``sizes_bytes``: monotone, latency-like below and bandwidth-like above.

    noise: standard deviation of log(time) per size, as for ``fit_line``. From 8 sizes on cross-validation says how sure it
    is. A size that is at least 1.5 times slower or faster than its neighbours allow counts as mismeasured. Sizes beyond the
    measured ones follow the shape, with slope 0 towards small and 1 towards large ones at the end. Raises UsageError
    below 4 sizes or a factor of 16 between them.
    """
    sizes, times = checked(sizes_bytes, times_ns)
    noise_sd = noise_per_size(sizes_bytes, noise)
    x, y = np.log(sizes), np.round(np.log(times / times[0]), _DECIMALS)
    off = isolated(x, y)
    points = _Points(x=x, y=y, noise_sd=np.hypot(noise_sd, off), trusted=off == 0)
    error_left_out, scores = _held_out(points) if sizes.size >= MIN_SIZES_TO_JUDGE else (None, np.empty(0))
    (predict,) = _fitted_predictors([points])
    grid = knots_between(points.x)
    mean, sd = predict(grid)
    sd = sd * _deviation_factor(scores)
    rising = monotone(grid, mean, points.x, predict(points.x)[0])
    curve = as_knots(grid, rising, np.minimum(sd, _MOST_SD) * Z80, unit_ns=float(times[0]))
    fitted = np.array([curve_time_ns(curve, size) for size in sizes])
    error = np.abs(fitted / times - 1)
    return Curve(
        family=FAMILY,
        knots=curve,
        mean_relative_error=float(error.mean()),
        max_relative_error=float(error.max()),
        cross_validated_error=error_left_out,
    )


def _held_out(points: _Points) -> tuple[float | None, Floats]:
    """Return the mean relative error at sizes left out (None: none of them counts), and how far off they are in predicted
    standard deviations. Inner sizes are left out in interleaved folds; the ends stay: a calibration is not asked beyond."""
    inner = np.arange(1, points.x.size - 1)
    folds = min(_FOLDS, inner.size)
    left_out = np.zeros((folds, points.x.size), dtype=bool)
    for fold in range(folds):
        left_out[fold, inner[fold::folds]] = True
    errors: list[float] = []
    scores: list[float] = []
    for out, predict in zip(left_out, _fitted_predictors([points.without(out) for out in left_out]), strict=True):
        mean, sd = predict(points.x[out])
        counts = points.trusted[out]
        difference = np.abs(mean - points.y[out])[counts]
        errors += list(np.expm1(difference))
        scores += list(difference / np.maximum(sd[counts], 1e-3))
    return float(np.mean(errors)) if errors else None, np.array(scores)


def _deviation_factor(scores: Floats) -> float:
    """Return the factor on predicted standard deviations with which 80% of the sizes left out lie within them.

    The 0.8 (n + 1)-th smallest score of n (split conformal prediction), which holds as often for one more size.
    """
    n = scores.size
    if n < MIN_SIZES_TO_JUDGE - 2:
        return 1.0
    return max(0.5, float(np.sort(scores)[min(n, math.ceil(0.8 * (n + 1))) - 1]) / Z80)


def _fitted_predictors(point_sets: Sequence[_Points]) -> list[Predictor]:
    """Return for each of ``point_sets`` the mean of the fitted families; the standard deviation holds their distance."""

    def joined(x: Floats, predictors: Sequence[Predictor]) -> Prediction:
        means, deviations = (np.array(part) for part in zip(*(predict(x) for predict in predictors), strict=True))
        return means.mean(axis=0), np.sqrt((deviations**2).mean(axis=0) + means.var(axis=0))

    families = zip(*(_fit_family(family, point_sets) for family in FAMILIES), strict=True)
    return [partial(joined, predictors=predictors) for predictors in families]


def _fit_family(family: CurveFamily, point_sets: Sequence[_Points]) -> list[Predictor]:
    """Fit one predictor to each of ``point_sets``; those of as many sizes are searched together."""
    predictors: dict[int, Predictor] = {}
    for size in {points.x.size for points in point_sets}:
        alike = [index for index, points in enumerate(point_sets) if points.x.size == size]
        x, y, noise_sd = (np.stack([getattr(point_sets[i], name) for i in alike]) for name in ("x", "y", "noise_sd"))
        fits = most_probable(family, x, y, sd=np.hypot(_PARAMETER_NOISE, noise_sd))
        for index, parameters, covariance in zip(alike, *fits, strict=True):
            predictors[index] = _family_predictor(family, point_sets[index], parameters, covariance)
    return [predictors[index] for index in range(len(point_sets))]


def _family_predictor(family: CurveFamily, points: _Points, parameters: Floats, covariance: Floats) -> Predictor:
    """The family and a Gaussian process through what it leaves over. Standard deviations count both."""
    left = points.y - family.model(parameters, points.x)
    correlation = _correlations(points.x, points.x)
    amplitude, noise = _amplitude_and_noise(points, left, correlation)
    gram = amplitude**2 * correlation + np.diag(noise**2 + points.noise_sd**2)
    slopes, explained = gradient(family, parameters, points.x), np.linalg.solve(gram, left)

    def predict(x: Floats) -> Prediction:
        """Return mean and standard deviation of log(time) at these sizes."""
        cross = amplitude**2 * _correlations(x, points.x)
        solved = np.linalg.solve(gram, cross.T)
        pull = gradient(family, parameters, x) - solved.T @ slopes
        variance = amplitude**2 - (cross * solved.T).sum(axis=1) + noise**2
        variance = np.maximum(variance, 0) + ((pull @ covariance) * pull).sum(axis=1)
        return family.model(parameters, x) + cross @ explained, np.sqrt(variance)

    return predict


def _amplitude_and_noise(points: _Points, left: Floats, correlation: Floats) -> tuple[float, float]:
    """Amplitude of the Gaussian process and noise of one size, both standard deviations of log(time): the most likely."""
    if points.x.size < MIN_SIZES_TO_JUDGE - 1:
        return _FEW
    pairs = [(amplitude, noise) for amplitude in _AMPLITUDES for noise in _NOISES]
    grams = np.array([amplitude**2 for amplitude, _ in pairs])[:, None, None] * correlation
    diagonal = np.arange(points.x.size)
    grams[:, diagonal, diagonal] += np.array([noise**2 for _, noise in pairs])[:, None] + points.noise_sd**2
    _, log_determinants = np.linalg.slogdet(grams)
    explained = np.linalg.solve(grams, np.broadcast_to(left[:, None], (len(pairs), left.size, 1)))[..., 0]
    likely = [-0.5 * float(left @ one + log) for one, log in zip(explained, log_determinants, strict=True)]
    return pairs[likely.index(max(likely))]


def _correlations(a: Floats, b: Floats) -> Floats:
    return np.asarray(np.exp(-np.abs(a[:, None] - b[None]) / _MEMORY))


_SHARPNESS = 6.0
"""Of the switch between protocols: their times at the crossing are undercut by log(2) / 6, 11%, at the most."""


@record
class CurveFamily:
    """One shape. parameters: log(latency), log(rate at large sizes), then those with a prior.

    model(parameters [..., count], x [..., sizes]): y [..., sizes]. prior: (mean, standard deviation) of each parameter
    after the first two. starts: of these, where the search begins. count: of free parameters.
    """

    model: Callable[[Floats, Floats], Floats]
    prior: tuple[tuple[float, float], ...]
    starts: tuple[tuple[float, ...], ...]

    @property
    def count(self) -> int:
        return 2 + len(self.prior)


def _pipelined_times(p: Floats, x: Floats) -> Floats:
    """latency + S / rate + 2 k sqrt(latency x S / rate): k = 1 is (sqrt(latency) + sqrt(S / rate))^2."""
    latency, wire = p[..., 0, None], x - p[..., 1, None]
    middle = np.log(2) + p[..., 2, None] + (latency + wire) / 2
    return np.asarray(np.logaddexp(np.logaddexp(latency, wire), middle))


def _protocol_times(p: Floats, x: Floats) -> Floats:
    """The smooth minimum of three lines: from lowest latency and lowest rate to highest latency and highest rate."""
    latency, wire = p[..., 0, None], x - p[..., 1, None]
    slower, costlier = np.exp(p[..., 2, None]), np.exp(p[..., 3, None])
    low = np.logaddexp(latency, wire + costlier)
    middle = np.logaddexp(latency + slower / 2, wire + costlier / 2)
    high = np.logaddexp(latency + slower, wire)
    least = np.minimum(np.minimum(low, middle), high)
    share = np.exp(-_SHARPNESS * (low - least)) + np.exp(-_SHARPNESS * (middle - least))
    share += np.exp(-_SHARPNESS * (high - least))
    return np.asarray(least - np.log(share) / _SHARPNESS)


# A message cut into the best number of pieces for a pipeline of s steps costs s alpha + S / beta + 2 sqrt(s alpha S / beta)
# (R. Rabenseifner, J. L. Traeff; E. Chan et al., "Collective communication", 2007): k = 1. Libraries cut at fixed sizes and
# ramp channels up with the size, which lies on either side of it: k from 0.4 to 1.1.
PIPELINED = CurveFamily(model=_pipelined_times, prior=((-0.4, 0.5),), starts=((-0.4,),))

# log of log: latency of the last protocol over that of the first e^0.7 to e^2 = 2 to 7, rate over rate e^0.8 to e^2.2 =
# 2.3 to 9: NCCL's own tables put Simple against LL at 2 to 5 times the latency and 2 to 8 times the rate
# (src/graph/tuning.cc, NCCL 2.20 to 2.27).
PROTOCOLS = CurveFamily(model=_protocol_times, prior=((0.2, 0.5), (0.3, 0.5)), starts=((0.2, 0.5), (0.5, 0.7)))

FAMILIES = (PIPELINED, PROTOCOLS)
"""The curve is their geometric mean: their slips go in opposite directions."""

_MOVE = 1e-5  # of a parameter, for a derivative
_STEPS = 60
_ENOUGH = 1e-7  # relative decrease of the cost below which the search ends
_OUTLYING = 2.0  # standard deviations from which on a size counts less than its square


def most_probable(family: CurveFamily, x: Floats, y: Floats, *, sd: Floats) -> tuple[Floats, Floats]:
    """Parameters [fits, count] that make ``y`` and the prior most likely, and their covariance [fits, count, count].

    x, y, sd: [fits, sizes], each row a fit of its own. sd: standard deviation of ``y`` around the family; sizes far off
    count less (soft L1). Levenberg-Marquardt from each of the family's starts. All searches take their steps together:
    on arrays as small as one fit's, calling numpy costs far more than what it computes.
    """
    starts = len(family.starts)
    first = np.stack([y.min(axis=1) - 0.05, x[:, -1] - y[:, -1] + 0.1], axis=1)
    from_each = [
        np.concatenate([first, np.broadcast_to(start, (len(x), len(start)))], axis=1) for start in family.starts
    ]
    every = _Data(family=family, x=np.tile(x, (starts, 1)), y=np.tile(y, (starts, 1)), sd=np.tile(sd, (starts, 1)))
    costs, ends = _descended_costs(every, np.concatenate(from_each))
    best = costs.reshape(starts, len(x)).argmin(axis=0)
    parameters = ends.reshape(starts, len(x), family.count)[best, np.arange(len(x))]
    normal, _ = _normal_equations(*_residuals_and_slopes(_Data(family=family, x=x, y=y, sd=sd), parameters), x.shape[1])
    return parameters, np.asarray(np.linalg.inv(normal + 1e-3 * np.eye(family.count)), dtype=np.float64)


def gradient(family: CurveFamily, parameters: Floats, x: Floats) -> Floats:
    """d y / d parameter [sizes, parameters]."""
    # in memory by size, as BLAS gets it: another order of its sums would change last digits
    return np.ascontiguousarray(_values_and_gradient(family, parameters, x)[1].T)


def _values_and_gradient(family: CurveFamily, parameters: Floats, x: Floats) -> tuple[Floats, Floats]:
    """y [..., sizes], and its forward differences [..., parameters, sizes]; the model is asked once for both."""
    values = family.model(parameters[..., None, :] + _parameter_moves(family.count), x[..., None, :])
    here = values[..., :1, :]
    return here[..., 0, :], (values[..., 1:, :] - here) / _MOVE


@cache
def _parameter_moves(count: int) -> Floats:
    """Return the moves [1 + count, count]: stay, then move one parameter each."""
    return np.concatenate([np.zeros((1, count)), _MOVE * np.eye(count)])


@record
class _Data:
    """What the searches of one family fit: each row of ``x``, ``y`` and ``sd`` [searches, sizes] is one search's."""

    family: CurveFamily
    x: Floats
    y: Floats
    sd: Floats

    def of(self, some: NDArray[np.bool_]) -> _Data:
        return _Data(family=self.family, x=self.x[some], y=self.y[some], sd=self.sd[some])


def _descended_costs(data: _Data, start: Floats) -> tuple[Floats, Floats]:
    """Cost [searches] and parameters [searches, count] at the end of each search; those at their end leave the others."""
    sizes, searching = data.x.shape[1], np.arange(len(start))
    end_cost, end = np.empty(len(start)), np.empty_like(start)
    parameters, damping = start, np.full(len(start), 1e-2)
    residual, jacobian = _residuals_and_slopes(data, parameters)
    cost = _robust_costs(residual, sizes)
    diagonal = np.arange(data.family.count)
    for _ in range(_STEPS):
        normal, pull = _normal_equations(residual, jacobian, sizes)
        on_diagonal = normal[:, diagonal, diagonal]
        normal[:, diagonal, diagonal] = on_diagonal + damping[:, None] * (on_diagonal + 1e-6)
        tried = parameters - np.clip(np.linalg.solve(normal, pull)[..., 0], -2, 2)
        residual_there, jacobian_there = _residuals_and_slopes(data, tried)
        new = _robust_costs(residual_there, sizes)
        worse = new >= cost
        damping = np.where(worse, damping * 4, damping / 3)
        at_end = np.where(worse, damping > 1e8, cost - new < _ENOUGH * new)
        cost, parameters = np.where(worse, cost, new), np.where(worse[:, None], parameters, tried)
        residual = np.where(worse[:, None], residual, residual_there)
        jacobian = np.where(worse[:, None, None], jacobian, jacobian_there)
        if at_end.any():
            end_cost[searching[at_end]], end[searching[at_end]] = cost[at_end], parameters[at_end]
            on = ~at_end
            searching, data, cost, parameters = searching[on], data.of(on), cost[on], parameters[on]
            damping, residual, jacobian = damping[on], residual[on], jacobian[on]
            if not searching.size:
                break
    end_cost[searching], end[searching] = cost, parameters
    return end_cost, end


def _residuals_and_slopes(data: _Data, parameters: Floats) -> tuple[Floats, Floats]:
    """Residuals of the sizes, then of the prior, in standard deviations, and d residual / d parameter."""
    family, sizes = data.family, data.x.shape[1]
    values, slopes = _values_and_gradient(family, parameters, data.x)
    residual = np.empty((len(parameters), sizes + len(family.prior)))
    jacobian = np.zeros((*residual.shape, family.count))
    residual[:, :sizes] = (values - data.y) / data.sd
    np.divide(np.swapaxes(slopes, 1, 2), data.sd[..., None], out=jacobian[:, :sizes])
    for index, (mean, width) in enumerate(family.prior):
        residual[:, sizes + index] = (parameters[:, 2 + index] - mean) / width
        jacobian[:, sizes + index, 2 + index] = 1 / width
    return residual, jacobian


def _normal_equations(residual: Floats, jacobian: Floats, sizes: int) -> tuple[Floats, Floats]:
    """Matrix [searches, count, count] and right side [searches, count, 1] of the weighted least squares."""
    weights = 1 / np.sqrt(1 + (residual / _OUTLYING) ** 2)
    weights[:, sizes:] = 1.0
    weighted = np.swapaxes(jacobian * weights[..., None], -1, -2)
    return weighted @ jacobian, weighted @ residual[..., None]


def _robust_costs(residual: Floats, sizes: int) -> Floats:
    square = (residual[:, :sizes] / _OUTLYING) ** 2
    outer = 2 * _OUTLYING**2 * (np.sqrt(1 + square) - 1).sum(axis=1)
    return np.asarray(outer + (residual[:, sizes:] ** 2).sum(axis=1))
