"""The curve of a collective: time against size where no straight line holds, with an 80% interval.

A few-parameter shape (:mod:`stepscope.predict.curve_families`) is fitted to log(size) and log(time); what it leaves over
is followed by a Gaussian process of short memory that dies out away from the measured sizes. Where many sizes were
measured the measurements rule, between few of them the shape does. Which shape: by cross-validation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepscope.core.errors import UsageError
from stepscope.core.words import unknown
from stepscope.predict.collectives.costs import Z80
from stepscope.predict.curve_families import FAMILIES, LINE, PIPELINED, PROTOCOLS, CurveFamily, gradient, most_probable
from stepscope.predict.curve_shape import as_knots, curve_time_ns, isolated, knots_between, monotone
from stepscope.predict.line_fit import checked, noise_per_size
from stepscope.records.calibration import Curve

Floats = NDArray[np.float64]
Prediction = tuple[Floats, Floats]  # mean and standard deviation of log(time) at the sizes asked for
Predictor = Callable[[Floats], Prediction]

BLEND = "pipelined+protocols"
KNOTS = "knots"
SHAPES: dict[str, tuple[CurveFamily, ...]] = {
    **{family.key: (family,) for family in FAMILIES},
    BLEND: (PIPELINED, PROTOCOLS),
}
"""Candidates: a family, or the geometric mean of two, whose slips go in opposite directions."""

MIN_SIZES_TO_CHOOSE = 8
"""With fewer sizes cross-validation is a lottery: the blend is taken, whose priors stand in for measurements."""

_FOLDS = 6
_BETTER = 0.9  # a shape with more parameters must bring the cross-validated error down to this share

_DECIMALS = 7
"""Of log(time / first time), which the search sees: the same digits in every unit of time. A search among several minima
may end in another one when the last bit of its input differs."""

_PARAMETER_NOISE = 0.05  # standard deviation of log(time) around a shape: no machine follows one exactly
_MEMORY = 2.5  # natural units of log(size): deviations from a shape last over a factor of 12 or so in size
_FEW = (0.15, 0.03)
_AMPLITUDES = (0.02, 0.05, 0.1, 0.2, 0.4)
_NOISES = (0.005, 0.02)
_MOST_SD = 2.3  # a factor of 10 either way: more says nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class _Points:
    """x = log(size), y = log(time / first time), known: standard deviation of y from the measurement itself; [sizes] each.

    trusted: not mismeasured, as far as neighbours can tell.
    """

    x: Floats
    y: Floats
    known: Floats
    trusted: NDArray[np.bool_]

    def without(self, left_out: NDArray[np.bool_]) -> _Points:
        keep = ~left_out
        return _Points(x=self.x[keep], y=self.y[keep], known=self.known[keep], trusted=self.trusted[keep])


def fit_curve(
    sizes_bytes: Sequence[int] | Floats,
    times_ns: Sequence[float] | Floats,
    *,
    noise: Sequence[float] | Floats | None = None,
    shape: str | None = None,
) -> Curve:
    """The curve through ``times_ns`` at ``sizes_bytes``: monotone, latency-like below and bandwidth-like above.

    noise: standard deviation of log(time) per size, as for ``fit_line``. shape: one of SHAPES or ``knots`` (straight
    lines between the measured sizes); None: cross-validation chooses from 8 sizes on, below it is pipelined+protocols.
    A size that is at least 1.5 times slower or faster than its neighbours allow counts as mismeasured. Sizes beyond the
    measured ones follow the shape, with slope 0 towards small and 1 towards large ones at the end. Raises UsageError
    below 4 sizes or a factor of 16 between them.
    """
    sizes, times = checked(sizes_bytes, times_ns)
    if shape is not None and shape not in (*SHAPES, KNOTS):
        raise UsageError(unknown("shape", shape, (*SHAPES, KNOTS)))
    known = noise_per_size(sizes_bytes, noise)
    x, y = np.log(sizes), np.round(np.log(times / times[0]), _DECIMALS)
    off = isolated(x, y)
    points = _Points(x=x, y=y, known=np.hypot(known, off), trusted=off == 0)
    chosen, held_out = (shape, None) if shape is not None else _choose(points)
    if held_out is None and sizes.size >= MIN_SIZES_TO_CHOOSE:
        held_out = _held_out((chosen,), points)[chosen]
    predictors = _fitted((chosen,), [points])[0]
    grid = knots_between(points.x)
    mean, sd = _joined(chosen, {name: predict(grid) for name, predict in predictors.items()})
    if held_out is not None:
        sd = sd * _stretch(held_out)
    at_sizes, _ = _joined(chosen, {name: predict(points.x) for name, predict in predictors.items()})
    rising = monotone(grid, mean, points.x, at_sizes)
    curve = as_knots(grid, rising, np.minimum(sd, _MOST_SD) * Z80, unit_ns=float(times[0]))
    fitted = np.array([curve_time_ns(curve, size) for size in sizes])
    error = np.abs(fitted / times - 1)
    return Curve(
        family=chosen,
        knots=curve,
        mean_relative_error=float(error.mean()),
        max_relative_error=float(error.max()),
        cross_validated_error=None if held_out is None else held_out.error,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _HeldOut:
    """error: mean relative error at sizes left out, None: none of them counts; scores: in predicted standard deviations."""

    error: float | None
    scores: Floats


def _choose(points: _Points) -> tuple[str, _HeldOut | None]:
    if points.x.size < MIN_SIZES_TO_CHOOSE:
        return BLEND, None
    results = _held_out((*SHAPES, KNOTS), points)
    best = LINE.key
    least = results[best].error
    if least is None:
        return BLEND, None
    for key, result in results.items():
        if result.error is not None and result.error < _BETTER * least:
            best, least = key, result.error
    return best, results[best]


def _held_out(keys: Sequence[str], points: _Points) -> dict[str, _HeldOut]:
    """By shape. Inner sizes are left out in interleaved folds; the ends stay: a calibration is not asked beyond them."""
    inner = np.arange(1, points.x.size - 1)
    folds = min(_FOLDS, inner.size)
    left_out = np.zeros((folds, points.x.size), dtype=bool)
    for fold in range(folds):
        left_out[fold, inner[fold::folds]] = True
    fitted = _fitted(keys, [points.without(out) for out in left_out])
    errors: dict[str, list[float]] = {key: [] for key in keys}
    scores: dict[str, list[float]] = {key: [] for key in keys}
    for out, predictors in zip(left_out, fitted, strict=True):
        counts = points.trusted[out]
        predictions = {name: predict(points.x[out]) for name, predict in predictors.items()}
        for key in keys:
            mean, sd = _joined(key, predictions)
            difference = np.abs(mean - points.y[out])
            errors[key] += list(np.expm1(difference[counts]))
            scores[key] += list(difference[counts] / np.maximum(sd[counts], 1e-3))
    return {
        key: _HeldOut(error=float(np.mean(errors[key])) if errors[key] else None, scores=np.array(scores[key]))
        for key in keys
    }


def _stretch(held_out: _HeldOut) -> float:
    """What predicted standard deviations must be multiplied with so that 80% of the sizes left out lie within.

    The 0.8 (n + 1)-th smallest score of n (split conformal prediction), which holds as often for one more size.
    """
    n = held_out.scores.size
    if n < MIN_SIZES_TO_CHOOSE - 2:
        return 1.0
    ordered = np.sort(held_out.scores)
    return max(0.5, float(ordered[min(n, math.ceil(0.8 * (n + 1))) - 1]) / Z80)


def _fitted(keys: Sequence[str], each: Sequence[_Points]) -> list[dict[str, Predictor]]:
    """For each of ``each``: what the shapes ``keys`` are made of, fitted to it, by key of the family (or ``knots``)."""
    fitted: list[dict[str, Predictor]] = [{} for _ in each]
    for family in dict.fromkeys(family for key in keys if key != KNOTS for family in SHAPES[key]):
        for done, predict in zip(fitted, _fit_family(family, each), strict=True):
            done[family.key] = predict
    if KNOTS in keys:
        for done, points in zip(fitted, each, strict=True):
            done[KNOTS] = _straight_between(points)
    return fitted


def _joined(key: str, predictions: Mapping[str, Prediction]) -> Prediction:
    """The prediction of shape ``key`` from those of its families."""
    if key == KNOTS:
        return predictions[KNOTS]
    parts = [predictions[family.key] for family in SHAPES[key]]
    means, deviations = (np.array(part) for part in zip(*parts, strict=True))
    return means.mean(axis=0), np.sqrt((deviations**2).mean(axis=0) + means.var(axis=0))


def _straight_between(points: _Points) -> Predictor:
    knots_x, knots_y = points.x[points.trusted], points.y[points.trusted]

    def predict(x: Floats) -> Prediction:
        beyond = np.maximum(x - knots_x[-1], 0)
        gap = np.abs(x[:, None] - knots_x[None]).min(axis=1)
        sd = _FEW[0] * np.sqrt(1 - np.exp(-2 * gap / _MEMORY)) + _FEW[1]
        return np.interp(x, knots_x, knots_y) + beyond, sd

    return predict


def _fit_family(family: CurveFamily, each: Sequence[_Points]) -> list[Predictor]:
    """One predictor for each of ``each``; those of as many sizes are searched together."""
    predictors: dict[int, Predictor] = {}
    for size in {points.x.size for points in each}:
        alike = [index for index, points in enumerate(each) if points.x.size == size]
        x, y, known = (np.stack([getattr(each[i], name) for i in alike]) for name in ("x", "y", "known"))
        found = most_probable(family, x, y, sd=np.hypot(_PARAMETER_NOISE, known))
        for index, parameters, covariance in zip(alike, *found, strict=True):
            predictors[index] = _predictor(family, each[index], parameters, covariance)
    return [predictors[index] for index in range(len(each))]


def _predictor(family: CurveFamily, points: _Points, parameters: Floats, covariance: Floats) -> Predictor:
    """The family and a Gaussian process through what it leaves over. Standard deviations count both."""
    left = points.y - family.model(parameters, points.x)
    correlation = _correlation(points.x, points.x)
    amplitude, noise = _hyperparameters(points, left, correlation)
    gram = amplitude**2 * correlation + np.diag(noise**2 + points.known**2)
    slopes, explained = gradient(family, parameters, points.x), np.linalg.solve(gram, left)

    def predict(x: Floats) -> Prediction:
        cross = amplitude**2 * _correlation(x, points.x)
        solved = np.linalg.solve(gram, cross.T)
        pull = gradient(family, parameters, x) - solved.T @ slopes
        variance = amplitude**2 - (cross * solved.T).sum(axis=1) + noise**2
        variance = np.maximum(variance, 0) + ((pull @ covariance) * pull).sum(axis=1)
        return family.model(parameters, x) + cross @ explained, np.sqrt(variance)

    return predict


def _hyperparameters(points: _Points, left: Floats, correlation: Floats) -> tuple[float, float]:
    """Amplitude of the Gaussian process and noise of one size, both standard deviations of log(time): the most likely."""
    if points.x.size < MIN_SIZES_TO_CHOOSE - 1:
        return _FEW
    pairs = [(amplitude, noise) for amplitude in _AMPLITUDES for noise in _NOISES]
    grams = np.array([amplitude**2 for amplitude, _ in pairs])[:, None, None] * correlation
    diagonal = np.arange(points.x.size)
    grams[:, diagonal, diagonal] += np.array([noise**2 for _, noise in pairs])[:, None] + points.known**2
    _, log_determinants = np.linalg.slogdet(grams)
    explained = np.linalg.solve(grams, np.broadcast_to(left[:, None], (len(pairs), left.size, 1)))[..., 0]
    likely = [-0.5 * float(left @ one + log) for one, log in zip(explained, log_determinants, strict=True)]
    return pairs[likely.index(max(likely))]


def _correlation(a: Floats, b: Floats) -> Floats:
    return np.asarray(np.exp(-np.abs(a[:, None] - b[None]) / _MEMORY))
