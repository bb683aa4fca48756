"""The straight line of a collective: alpha and beta from times at several sizes, fitted on relative error."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stepscope.core.errors import StepscopeError, UsageError
from stepscope.core.units import format_size
from stepscope.core.words import counted
from stepscope.records.calibration import Line, SizeError

Floats = NDArray[np.float64]

MIN_SIZES = 4
MIN_SPAN = 16
"""Fewer sizes, or sizes closer together (largest / smallest), cannot tell a latency from a rate: refused."""

LINE_OFF = 1.25
"""From this ratio between measured time and line on, the line is said to fail."""

RESAMPLES = 400
_LEAST_ABSOLUTE_ROUNDS = 25
_HUBER_ROUNDS = 25
_HUBER = 1.345  # standard deviations within which a residual counts in full: 95% efficient on normal noise
_SCALE_FLOOR = 0.002  # of log(time); below it all residuals count in full
_FLOOR = 0.01  # a prediction is never taken to be below this share of the measured time
_NORMAL_PER_MAD = 1.4826
_PRECISE = 0.05
_CREDITS = 40
_CREDIT_SIZES = 6
_CREDIT_WORTH = 0.7  # of the plain line's mean relative error
_CREDIT_FROM = 0.03  # mean relative error of the plain line below which nothing needs to be explained
_NEGLIGIBLE = 1e-3  # share of the largest time that a rate must explain to be one


def fit_line(
    sizes_bytes: Sequence[int] | Floats,
    times_ns: Sequence[float] | Floats,
    *,
    steps: int,
    wire_factor: float,
    noise: Sequence[float] | Floats | None = None,
    seed: int = 0,
) -> Line:
    """alpha (ns per step) and beta (bytes/s) of ``t = steps x alpha + max(0, wire_factor x S - credit) / beta``.

    Minimises log(predicted / measured) with Huber's weights, started from least absolute errors: every size counts as
    much as any other, twice too slow as much as twice too fast; one that was measured wrongly counts little, and so does
    one whose median is not known to 5%. alpha >= 0, 1 / beta >= 0; beta is None where the times do not grow with the
    size. The credit is 0 unless it takes away 30% of the mean error or more: without it, a token bucket's burst is
    taken for a faster link.

    noise: standard deviation of log(time) per size (:func:`noise_of`), None: 0. Intervals:
    95%, percentiles of a wild bootstrap (residuals and noise, kept at their sizes). Raises UsageError below 4 sizes or
    a factor of 16 between them.
    """
    sizes, times = checked(sizes_bytes, times_ns)
    if steps < 1 or wire_factor <= 0:
        raise StepscopeError(f"no line with {steps} steps and wire factor {wire_factor:g}: nothing travels")
    spread = noise_per_size(sizes_bytes, noise)
    trust = 1 / (1 + (spread / _PRECISE) ** 2)
    credit = _credit_bytes(times, sizes * wire_factor, float(steps), trust)
    wire = np.maximum(sizes * wire_factor - credit, 0)
    latency, rate = _robust_lines(times[None], wire[None], float(steps), trust)
    alpha, inverse = float(latency[0]), float(rate[0])
    predicted = steps * alpha + wire * inverse
    residuals = np.log(times / np.maximum(predicted, _FLOOR * times))
    jitter = np.sqrt(residuals**2 * sizes.size / (sizes.size - 2) + spread**2)
    draws = np.random.default_rng(seed).standard_normal((RESAMPLES, sizes.size))
    alphas, inverses = _robust_lines(predicted * np.exp(draws * jitter), wire[None], float(steps), trust)
    alpha_low, alpha_high = (float(q) for q in np.quantile(alphas, [0.025, 0.975]))
    slow, fast = (float(q) for q in np.quantile(inverses, [0.975, 0.025]))
    shows_rate = wire.max() * inverse > _NEGLIGIBLE * times.max()
    error = np.abs(predicted / times - 1)
    return Line(
        alpha_ns=alpha,
        alpha_ns_low=alpha_low,
        alpha_ns_high=alpha_high,
        beta_bytes_per_s=1e9 / inverse if shows_rate else None,
        beta_bytes_per_s_low=1e9 / slow if shows_rate else None,
        beta_bytes_per_s_high=1e9 / fast if shows_rate and fast > 0 else None,
        steps=steps,
        wire_factor=wire_factor,
        r_squared=_r_squared(times, predicted),
        mean_relative_error=float(error.mean()),
        max_relative_error=float(error.max()),
        credit_bytes=credit,
    )


def fit_latency(
    times_ns: Sequence[float] | Floats, *, steps: int, intervals_ns: Sequence[tuple[float, float]] = ()
) -> Line:
    """The line of a collective without payload: alpha (ns per step) alone, from the median of ``times_ns``.

    intervals_ns: 95% intervals of the times; the widest of them is that of alpha.
    """
    times = np.asarray(times_ns, dtype=np.float64)
    if times.size == 0 or steps < 1:
        raise StepscopeError(f"no latency from {counted(times.size, 'time')} and {counted(steps, 'step')}")
    middle = float(np.median(times))
    error = np.abs(middle / times - 1)
    return Line(
        alpha_ns=middle / steps,
        alpha_ns_low=min((low for low, _ in intervals_ns), default=None),
        alpha_ns_high=max((high for _, high in intervals_ns), default=None),
        beta_bytes_per_s=None,
        beta_bytes_per_s_low=None,
        beta_bytes_per_s_high=None,
        steps=steps,
        wire_factor=0.0,
        r_squared=_r_squared(times, np.full(times.size, middle)),
        mean_relative_error=float(error.mean()),
        max_relative_error=float(error.max()),
    )


WIDE = 4
"""From this ratio between two sizes on, calls of them tell a latency from a rate."""


def relative_line(sizes_bytes: Sequence[int], times_ns: Sequence[float]) -> tuple[float, float, float]:
    """Latency (ns), time per byte, and standard deviation of log(time) around them, of any number of calls.

    Least squares of the relative error; sizes less than ``WIDE`` apart show a rate alone, or without bytes a latency.
    """
    sizes, times = np.array(sizes_bytes, dtype=np.float64), np.maximum(np.array(times_ns, dtype=np.float64), 1.0)
    wide = sizes.max() >= WIDE * max(1.0, sizes.min())
    latency, wire = 1 / times, sizes / times
    if wide:
        alpha, inverse = _least_squares(latency[None], wire[None], np.ones((1, 1)), np.ones((1, 1)))
        line = float(alpha[0]), float(inverse[0])
    elif sizes.any():
        line = 0.0, float(wire.sum() / (wire**2).sum())
    else:
        line = float(latency.sum() / (latency**2).sum()), 0.0
    off = np.log(np.maximum(1e-9, line[0] + line[1] * sizes) / times)
    return *line, float(np.sqrt((off**2).mean()))


def line_time_ns(line: Line, size_bytes: float) -> float:
    """The line's time for ``size_bytes``, ns; without a beta, its latency."""
    return line.steps * line.alpha_ns + wire_time_ns(line, line.wire_factor * float(size_bytes))


def wire_time_ns(line: Line, wire_bytes: float) -> float:
    """The line's time for ``wire_bytes`` without any latency, ns; 0 without a beta."""
    if line.beta_bytes_per_s is None:
        return 0.0
    return max(0.0, wire_bytes - line.credit_bytes) / line.beta_bytes_per_s * 1e9


def noise_of(low: float | None, high: float | None) -> float:
    """Standard deviation of log(median) from its 95% interval; 0 where there is none."""
    if low is None or high is None or low <= 0 or high <= low:
        return 0.0
    return float(np.log(high / low) / (2 * 1.96))


def noise_per_size(sizes_bytes: Sequence[int] | Floats, noise: Sequence[float] | Floats | None) -> Floats:
    """``noise`` of each distinct size, in their order: the largest of those given for it, 0 without any."""
    sizes = np.asarray(sizes_bytes, dtype=np.float64)
    distinct = np.unique(sizes)
    if noise is None:
        return np.zeros(distinct.size)
    values = np.asarray(noise, dtype=np.float64)
    return np.array([float(values[sizes == size].max()) for size in distinct])


def checked(sizes_bytes: Sequence[int] | Floats, times_ns: Sequence[float] | Floats) -> tuple[Floats, Floats]:
    """Sizes and times as arrays in the order of sizes, one time a size (the median of several). Raises UsageError."""
    sizes, times = np.asarray(sizes_bytes, dtype=np.float64), np.asarray(times_ns, dtype=np.float64)
    if sizes.shape != times.shape or sizes.ndim != 1:
        raise StepscopeError(f"{sizes.size} sizes and {times.size} times do not pair up")
    if sizes.size and not (np.isfinite(sizes) & np.isfinite(times) & (sizes > 0) & (times > 0)).all():
        raise StepscopeError("sizes and times must be positive and finite")
    distinct = np.unique(sizes)
    if distinct.size < MIN_SIZES:
        raise UsageError(
            f"{counted(distinct.size, 'size')} measured, a fit needs at least {MIN_SIZES}",
            why="fewer do not determine latency, rate and how well the two fit",
            fix="measure more sizes: --sizes 1K:64M:4",
        )
    if distinct[-1] < MIN_SPAN * distinct[0]:
        raise UsageError(
            f"sizes from {format_size(distinct[0])} to {format_size(distinct[-1])} are too close together",
            why=f"latency and rate can be separated only over a factor of {MIN_SPAN} or more",
            fix="measure a wider range: --sizes 1K:64M:4",
        )
    return distinct, np.array([float(np.median(times[sizes == size])) for size in distinct])


def line_fails(errors: Sequence[SizeError]) -> str | None:
    """Say in a sentence where and by how much the straight line is off; None where it holds within a quarter.

    A single size counts only where the curve, too, lies that far from the line: not every slip of a measurement.
    """
    parts = []
    for sign, word in ((1, "low"), (-1, "high")):
        ratios = [
            (e.measured_ns / e.line_ns) ** sign if (e.curve_ns / e.line_ns) ** sign >= LINE_OFF else 1.0 for e in errors
        ]
        worst = max(range(len(ratios)), key=ratios.__getitem__, default=None)
        if worst is None or ratios[worst] < LINE_OFF:
            continue
        first = last = worst
        while first > 0 and ratios[first - 1] >= LINE_OFF:
            first -= 1
        while last + 1 < len(ratios) and ratios[last + 1] >= LINE_OFF:
            last += 1
        where = _range_text(errors[first].size_bytes, errors[last].size_bytes)
        amount = "" if first == last else "up to "
        parts.append((ratios[worst], f"{amount}{ratios[worst]:.1f}x too {word} {where}"))
    if not parts:
        return None
    return "the straight line is " + ", ".join(text for _, text in sorted(parts, reverse=True))


def _range_text(first: int, last: int) -> str:
    return f"at {format_size(first)}" if first == last else f"from {format_size(first)} to {format_size(last)}"


def _credit_bytes(times: Floats, wire: Floats, steps: float, trust: Floats) -> float:
    """Bytes that pass before the rate applies: 0 unless another value takes away much of the error.

    Values are tried below the three largest sizes, from which the rate must come, and above the two smallest.
    """
    if wire.size < _CREDIT_SIZES:
        return 0.0
    candidates = np.concatenate([[0.0], np.geomspace(wire[1], wire[-3], _CREDITS)])
    past = np.maximum(wire[None] - candidates[:, None], 0)
    spread = np.broadcast_to(times, past.shape)
    alpha, inverse = _robust_lines(spread, past, steps, trust)
    predicted = np.maximum(steps * alpha[:, None] + past * inverse[:, None], _FLOOR * times)
    error = np.abs(np.log(predicted / times)) @ (trust / trust.sum())
    best = int(error.argmin())
    worth_it = error[best] < _CREDIT_WORTH * error[0] and error[0] > _CREDIT_FROM
    return float(candidates[best]) if worth_it else 0.0


def _robust_lines(times: Floats, wire_bytes: Floats, steps: float, trust: Floats) -> tuple[Floats, Floats]:
    """alpha and 1 / beta (ns, ns per byte) for each row of ``times`` [fits, sizes].

    wire_bytes: [fits or 1, sizes]; trust: weight of each size before any residual is known [sizes].
    """
    latency, wire = steps / times, wire_bytes / times
    alpha, inverse = _least_squares(latency, wire, np.broadcast_to(trust, times.shape), np.ones_like(times))
    reach: Floats | float = 0.0
    floor = _FLOOR * times
    for round_ in range(_LEAST_ABSOLUTE_ROUNDS + _HUBER_ROUNDS):
        predicted = np.maximum(steps * alpha[:, None] + wire_bytes * inverse[:, None], floor)
        residual = np.log(times / predicted)
        size = np.abs(residual)
        if round_ < _LEAST_ABSOLUTE_ROUNDS:
            weights = trust / np.maximum(size, 1e-6)
            if round_ == _LEAST_ABSOLUTE_ROUNDS - 1:
                middle = np.median(size, axis=1, keepdims=True)
                reach = _HUBER * np.maximum(_NORMAL_PER_MAD * middle, _SCALE_FLOOR)
        else:
            weights = trust * np.minimum(1, reach / np.maximum(size, 1e-12))
        # log(time) is log(predicted) + (prediction / predicted - 1), to first order
        target = 1 + np.minimum(np.maximum(residual, -0.5), 1)
        alpha, inverse = _least_squares(steps / predicted, wire_bytes / predicted, weights, target)
    return alpha, inverse


def _least_squares(latency: Floats, wire: Floats, weights: Floats, target: Floats) -> tuple[Floats, Floats]:
    """Weighted least squares of ``latency x alpha + wire / beta = target`` in each row, neither below 0."""
    by_latency, by_wire = weights * latency, weights * wire
    aa, bb = (weights * latency**2).sum(axis=1), (weights * wire**2).sum(axis=1)
    ab = (by_latency * wire).sum(axis=1)
    at, bt = (by_latency * target).sum(axis=1), (by_wire * target).sum(axis=1)
    determinant = np.maximum(aa * bb - ab**2, 1e-14 * aa * bb)
    alpha, inverse = (at * bb - bt * ab) / determinant, (bt * aa - at * ab) / determinant
    alpha, inverse = np.where(inverse < 0, at / aa, alpha), np.maximum(inverse, 0)
    return np.maximum(alpha, 0), np.where(alpha < 0, bt / bb, inverse)


def _r_squared(times: Floats, predicted: Floats) -> float:
    """Share of the variation of log(time) that the line explains; 1 where there is none to explain."""
    logs = np.log(times)
    total = float(((logs - logs.mean()) ** 2).sum())
    left = float(((logs - np.log(np.maximum(predicted, _FLOOR * times))) ** 2).sum())
    return 1.0 - left / total if total > 1e-12 else 1.0


ETHERNET_MTU = 1500

_IP_AND_TCP = 52  # IPv4 20, TCP 20, its time stamps 12 (RFC 791, 9293, 7323)
_ETHERNET = 14  # what a Linux queueing discipline counts of a frame beside the packet


def link_rate_bytes_per_s(payload_bytes_per_s: float) -> float:
    """Rate of an Ethernet link that carries ``payload_bytes_per_s`` in full TCP segments: with headers, x 1.046 at 1500.

    Counts a frame as ``tc`` does: without preamble, check sequence and gap (24 bytes more on a real wire).
    """
    return payload_bytes_per_s * (ETHERNET_MTU + _ETHERNET) / (ETHERNET_MTU - _IP_AND_TCP)
