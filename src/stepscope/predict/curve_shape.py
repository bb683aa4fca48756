"""Knots of a curve: made monotone, thinned out, and read back."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stepscope.records.calibration import Curve, Knot

Floats = NDArray[np.float64]

_BELOW = 2**10
_ABOVE = 2**6
"""A curve is drawn from the smallest size / _BELOW (not below 1 byte) to the largest size x _ABOVE."""

_PER_OCTAVE = 2
_THIN = 0.002  # log(time) that a knot must be away from its neighbours' straight line to stay
_MISMEASURED = math.log(1.5)
_DISORDER = math.log(1.2)


def curve_time_ns(curve: Curve | Sequence[Knot], size_bytes: float) -> float:
    """The curve's time for ``size_bytes``, ns: straight in log-log between knots, end slopes beyond them."""
    knots = curve.knots if isinstance(curve, Curve) else curve
    x, size = [math.log(knot.size_bytes) for knot in knots], math.log(max(size_bytes, 1.0))
    if len(knots) == 1:
        return knots[0].time_ns
    i = min(max(bisect.bisect_right(x, size), 1), len(x) - 1)  # end slopes go on
    low, high = math.log(knots[i - 1].time_ns), math.log(knots[i].time_ns)
    return math.exp(low + (size - x[i - 1]) / (x[i] - x[i - 1]) * (high - low))


def curve_interval_ns(curve: Curve | Sequence[Knot], size_bytes: float) -> tuple[float, float] | None:
    """80% interval of a call's median time, ns; None where the curve has none."""
    knots = curve.knots if isinstance(curve, Curve) else curve
    x, below, above = [], [], []
    for knot in knots:
        if knot.low_ns is None or knot.high_ns is None:
            return None
        x.append(math.log(knot.size_bytes))
        below.append(math.log(knot.low_ns / knot.time_ns))
        above.append(math.log(knot.high_ns / knot.time_ns))
    middle, size = curve_time_ns(knots, size_bytes), math.log(max(size_bytes, 1.0))
    return middle * math.exp(np.interp(size, x, below)), middle * math.exp(np.interp(size, x, above))


def isolated(x: Floats, y: Floats) -> Floats:
    """Return how far log(time) of mismeasured sizes lies from their neighbours, 0 for all others [sizes].

    Mismeasured: at least 1.5 times off the straight line between both neighbours, and out of order: slower than the next
    larger size, or faster than the next smaller one, by a fifth or more. A change of protocol is off the line, too, but
    in order. Ends have one neighbour and are never judged.
    """
    off = np.zeros(x.size)
    for i in range(1, x.size - 1):
        share = (x[i] - x[i - 1]) / (x[i + 1] - x[i - 1])
        between = y[i - 1] + share * (y[i + 1] - y[i - 1])
        slow, fast = y[i] - y[i + 1] > _DISORDER, y[i - 1] - y[i] > _DISORDER
        if (slow and y[i] - between > _MISMEASURED) or (fast and between - y[i] > _MISMEASURED):
            off[i] = abs(y[i] - between)
    return off


def knots_between(x: Floats) -> Floats:
    """log(size) of the knots for measured log(sizes) ``x``: these, and two in each octave from far below to far above."""
    first = max(0.0, float(x[0]) - math.log(_BELOW))
    last = float(x[-1]) + math.log(_ABOVE)
    step = math.log(2) / _PER_OCTAVE
    grid = float(x[0]) + step * np.arange(math.floor((first - x[0]) / step), math.ceil((last - x[0]) / step))
    clear = grid[np.abs(grid[:, None] - x[None]).min(axis=1) > step / 3]
    return np.unique(np.concatenate([clear[clear >= first], x]))


def monotone(grid: Floats, values: Floats, x: Floats, at_x: Floats) -> Floats:
    """``values`` on ``grid`` as a curve that never falls; ``x`` (part of the grid) and ``at_x``: the measured sizes.

    The fitted values at measured sizes are pooled where they fall (isotonic regression). Between two of them slopes are
    cut to 0 .. 1, or to their own secant where that is steeper: caches and protocols can make twice the size cost more
    than twice the time, but no shape may invent it. Outside slopes are cut to 0 .. 1.
    """
    pooled = _nearest_rising(at_x)
    place = np.searchsorted(grid, x)
    result = np.empty_like(values)
    for left, right, low, high in zip(place[:-1], place[1:], pooled[:-1], pooled[1:], strict=True):
        part = slice(left, right + 1)
        steepest = max(1.0, (high - low) / (grid[right] - grid[left]))
        rises = np.clip(np.diff(values[part]), 0, steepest * np.diff(grid[part]))
        free = low + np.concatenate([[0.0], np.cumsum(rises)])
        floor = np.maximum(low, high - steepest * (grid[right] - grid[part]))
        ceiling = np.minimum(high, low + steepest * (grid[part] - grid[left]))
        result[part] = np.clip(free, floor, ceiling)
    first, last = place[0], place[-1]
    above = np.clip(np.diff(values[last:]), 0, np.diff(grid[last:]))
    below = np.clip(np.diff(values[: first + 1]), 0, np.diff(grid[: first + 1]))
    result[last:] = pooled[-1] + np.concatenate([[0.0], np.cumsum(above)])
    result[: first + 1] = pooled[0] - np.concatenate([np.cumsum(below[::-1])[::-1], [0.0]])
    return result


def as_knots(grid: Floats, values: Floats, reach: Floats, *, unit_ns: float) -> tuple[Knot, ...]:
    """Knots at sizes exp(``grid``), times exp(``values``), intervals exp(``values`` -+ ``reach``) in ``unit_ns``; thinned.

    The first two have the same time (slope 0 below), and one twice and one four times as large as the last follow it
    with slope 1.
    """
    x, y, r = grid, np.array(values), np.array(reach)
    if x.size > 1:
        y[0] = y[1]
    x = np.concatenate([x, x[-1] + np.log([2.0, 4.0])])
    y = np.concatenate([y, y[-1] + np.log([2.0, 4.0])])
    r = np.concatenate([r, np.full(2, r[-1])])
    sizes = np.maximum(1, np.rint(np.exp(x))).astype(np.int64)
    kept = _thinned_indices(x, np.stack([y, y - r, y + r]))
    ends = [0, 1, x.size - 2, x.size - 1]
    knots: dict[int, Knot] = {}
    for i in sorted({*kept, *ends}):
        knots.setdefault(
            int(sizes[i]),
            Knot(
                size_bytes=int(sizes[i]),
                time_ns=unit_ns * math.exp(y[i]),
                low_ns=unit_ns * math.exp(y[i] - r[i]),
                high_ns=unit_ns * math.exp(y[i] + r[i]),
            ),
        )
    return tuple(knots.values())


def _thinned_indices(x: Floats, curves: Floats) -> list[int]:
    """Indices without which straight lines would miss one of ``curves`` [curves, sizes] (Douglas and Peucker, 1973)."""
    kept, open_parts = [0, x.size - 1], [(0, x.size - 1)]
    while open_parts:
        first, last = open_parts.pop()
        if last - first < 2:
            continue
        share = (x[first : last + 1] - x[first]) / (x[last] - x[first])
        straight = curves[:, first, None] + share * (curves[:, last] - curves[:, first])[:, None]
        miss = np.abs(curves[:, first : last + 1] - straight)
        miss[1:] *= 0.1  # intervals need not be drawn as finely
        worst = int(miss.max(axis=0).argmax())
        if miss[:, worst].max() > _THIN:
            kept.append(first + worst)
            open_parts += [(first, first + worst), (first + worst, last)]
    return kept


def _nearest_rising(values: Floats) -> Floats:
    """The nearest sequence that never falls: neighbours out of order share their mean."""
    blocks: list[tuple[float, int]] = []
    for value in values:
        mean, count = float(value), 1
        while blocks and blocks[-1][0] > mean:
            before, size = blocks.pop()
            mean, count = (before * size + mean * count) / (size + count), size + count
        blocks.append((mean, count))
    return np.concatenate([np.full(count, mean) for mean, count in blocks])
