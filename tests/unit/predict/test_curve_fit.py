"""Curves follow what was measured, keep to physics between and beyond it, and say how sure they are."""

from __future__ import annotations

import math

import numpy as np
import pytest
from benchmarks.curve_fit import five_sizes

from stepscope.core.errors import UsageError
from stepscope.predict.curve_fit import FAMILY, fit_curve
from stepscope.predict.curve_shape import curve_interval_ns, curve_time_ns, isolated
from stepscope.records.calibration import Curve

SIZES = np.array([8.0 * 2**i for i in range(30)])
LATENCY, RATE = 20_000.0, 200e9


def straight(sizes):
    return LATENCY + sizes / RATE * 1e9


def pipelined(sizes):
    wire = sizes / RATE * 1e9
    return LATENCY + wire + 2 * 0.7 * np.sqrt(LATENCY * wire)


def protocols(sizes):
    wire = sizes / RATE * 1e9
    return np.minimum(LATENCY + 6 * wire, 3.5 * LATENCY + wire)


TRUTHS = [straight, pipelined, protocols]


def off(curve: Curve, sizes, times) -> float:
    """Largest relative error."""
    return max(abs(curve_time_ns(curve, s) / t - 1) for s, t in zip(sizes, times, strict=True))


@pytest.mark.parametrize("truth", TRUTHS)
def test_many_sizes_are_followed_closely_between_them_too(truth) -> None:
    curve = fit_curve(SIZES[::2], truth(SIZES[::2]))
    assert curve.max_relative_error < 0.03
    assert off(curve, SIZES[1:-1:2], truth(SIZES[1:-1:2])) < 0.08
    assert curve.cross_validated_error is not None
    assert curve.cross_validated_error < 0.08


@pytest.mark.parametrize("truth", TRUTHS)
def test_five_sizes_are_enough_for_any_of_the_shapes(truth) -> None:
    picked = np.array(five_sizes([int(s) for s in SIZES]), dtype=float)
    curve = fit_curve(picked, truth(picked))
    middle = SIZES[(SIZES >= 2**16) & (SIZES <= 2**24)]
    error = [abs(curve_time_ns(curve, s) / t - 1) for s, t in zip(middle, truth(middle), strict=True)]
    assert np.mean(error) < 0.12
    assert curve.family == FAMILY


@pytest.mark.parametrize("truth", TRUTHS)
def test_far_beyond_the_measured_sizes_latency_stays_and_time_grows_with_the_bytes(truth) -> None:
    measured = SIZES[8:24]
    curve = fit_curve(measured, truth(measured))
    assert curve_time_ns(curve, 1) == pytest.approx(truth(np.array([1.0]))[0], rel=0.2)
    assert curve_time_ns(curve, 2**40) == pytest.approx(truth(np.array([2.0**40]))[0], rel=0.25)
    slope = math.log2(curve_time_ns(curve, 2**45) / curve_time_ns(curve, 2**44))
    assert slope == pytest.approx(1.0)


def test_a_single_slow_size_is_not_followed() -> None:
    times = pipelined(SIZES)
    times[14] *= 3
    curve = fit_curve(SIZES, times)
    assert curve_time_ns(curve, SIZES[14]) == pytest.approx(pipelined(SIZES)[14], rel=0.1)


def test_a_change_of_protocol_is_followed() -> None:
    times = straight(SIZES) * np.where(SIZES >= 2**14, 1.7, 1.0)
    assert isolated(np.log(SIZES), np.log(times)).max() == 0
    curve = fit_curve(SIZES, times)
    assert off(curve, SIZES, times) < 0.12


def test_twice_the_size_may_cost_more_than_twice_the_time_where_that_was_measured() -> None:
    times = np.where(SIZES < 2**20, straight(SIZES), straight(SIZES) * np.minimum((SIZES / 2**20) ** 0.4, 4.0))
    curve = fit_curve(SIZES, times)
    assert off(curve, SIZES, times) < 0.15


def test_a_curve_rises_with_an_interval_around_it() -> None:
    rng = np.random.default_rng(3)
    noisy = pipelined(SIZES) * np.exp(0.1 * rng.standard_normal(SIZES.size))
    curve = fit_curve(SIZES, noisy)
    times = [knot.time_ns for knot in curve.knots]
    assert times == sorted(times)
    for size in (1, 100, 3e5, 1e12):
        low, high = curve_interval_ns(curve, size)
        assert low < curve_time_ns(curve, size) < high


def test_an_interval_is_wider_between_few_sizes_than_between_many() -> None:
    def width(curve: Curve) -> float:
        low, high = curve_interval_ns(curve, 3 * 2**20)
        return high / low

    few, many = SIZES[::7], SIZES
    assert width(fit_curve(few, pipelined(few))) > 1.1 * width(fit_curve(many, pipelined(many)))


def test_80_percent_intervals_hold_about_80_percent() -> None:
    rng = np.random.default_rng(5)
    held = []
    for truth in TRUTHS:
        for _ in range(4):
            noisy = truth(SIZES) * np.exp(0.06 * rng.standard_normal(SIZES.size))
            curve = fit_curve(SIZES[::2], noisy[::2])
            for size, time in zip(SIZES[1:-1:2], noisy[1:-1:2], strict=True):
                low, high = curve_interval_ns(curve, size)
                held.append(low <= time <= high)
    assert 0.65 <= np.mean(held) <= 0.95


def test_the_five_sizes_are_the_ends_and_where_curves_bend() -> None:
    sizes = [8 * 2**i for i in range(31)]
    assert five_sizes(sizes) == (8, 2**16, 2**20, 2**24, 2**33)
    assert five_sizes([1, 2, 3]) == (1, 2, 3)
    assert five_sizes([4**i for i in range(8)]) == (1, 16, 64, 1024, 16384)


def test_too_few_sizes_are_refused() -> None:
    with pytest.raises(UsageError, match="3 sizes"):
        fit_curve(SIZES[:3], straight(SIZES[:3]))
