from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.calibration_rows import MACHINE, sweep
from tests.examples import examples

from stepscope.predict.calibrated import time_of
from stepscope.predict.calibration import calibrate
from stepscope.predict.curve_fit import fit_curve
from stepscope.predict.curve_shape import curve_interval_ns, curve_time_ns
from stepscope.predict.line_fit import fit_line, line_time_ns
from stepscope.records import codec
from stepscope.records.calibration import Calibration

SIZES = np.array([1024.0 * 4**i for i in range(9)])

latencies = st.floats(1e3, 1e7)
rates = st.floats(1e7, 1e12)
any_times = st.lists(st.floats(1e3, 1e9), min_size=6, max_size=9)


@given(alpha=latencies, beta=rates, steps=st.integers(1, 62), wire=st.floats(0.5, 4.0))
@examples(40)
def test_planted_alpha_and_beta_are_found(alpha: float, beta: float, steps: int, wire: float) -> None:
    times = steps * alpha + wire * SIZES / beta * 1e9
    line = fit_line(SIZES, times, steps=steps, wire_factor=wire)
    assert all(np.isclose(line_time_ns(line, s), t, rtol=1e-3) for s, t in zip(SIZES, times, strict=True))
    bandwidth = wire * SIZES[-1] / beta * 1e9 / times[-1]
    if bandwidth > 0.05:
        assert line.beta_bytes_per_s is not None
        assert np.isclose(line.beta_bytes_per_s, beta, rtol=0.02)
    if 1 - wire * SIZES[0] / beta * 1e9 / times[0] > 0.05:
        assert np.isclose(line.alpha_ns, alpha, rtol=0.02)


@given(times=any_times)
@examples(12)
def test_any_times_at_all_give_a_rising_positive_finite_curve(times: list[float]) -> None:
    curve = fit_curve(SIZES[: len(times)], times)
    values = [curve_time_ns(curve, size) for size in np.geomspace(1, 1e12, 60)]
    assert np.isfinite(values).all()
    assert min(values) > 0
    assert (np.diff(values) >= -1e-9 * np.array(values[1:])).all()
    for size in (1.0, 1e5, 1e12):
        low, high = curve_interval_ns(curve, size) or (0, 0)
        assert 0 < low <= curve_time_ns(curve, size) <= high


@given(times=any_times, by=st.floats(1e-2, 1e2))
@examples(8)
def test_another_unit_of_time_scales_line_and_curve(times: list[float], by: float) -> None:
    sizes = SIZES[: len(times)]
    scaled = [by * t for t in times]
    curve, other = fit_curve(sizes, times), fit_curve(sizes, scaled)
    for size in (2e3, 1e5, 4e6):
        assert np.isclose(by * curve_time_ns(curve, size), curve_time_ns(other, size), rtol=1e-9)
    line = fit_line(sizes, times, steps=1, wire_factor=1.0)
    after = fit_line(sizes, scaled, steps=1, wire_factor=1.0)
    for size in (2e3, 1e5, 4e6):
        assert np.isclose(by * line_time_ns(line, size), line_time_ns(after, size), rtol=1e-6)


@given(where=st.integers(1, 7), factor=st.sampled_from([0.1, 0.3, 3.0, 10.0]), alpha=latencies)
@examples(30)
def test_one_mismeasured_size_leaves_the_line_at_both_ends_where_it_was(
    where: int, factor: float, alpha: float
) -> None:
    sizes = np.array([1024.0 * 2**i for i in range(17)])
    times = 2 * alpha + sizes / 1e9 * 1e9
    wrong = times.copy()
    wrong[2 * where] *= factor
    line = fit_line(sizes, wrong, steps=2, wire_factor=1.0)
    assert abs(line_time_ns(line, sizes[0]) / times[0] - 1) < 0.1
    assert abs(line_time_ns(line, sizes[-1]) / times[-1] - 1) < 0.1


@given(order=st.permutations(range(9)), times=st.lists(st.floats(1e3, 1e9), min_size=9, max_size=9))
@examples(6)
def test_the_order_of_the_sizes_does_not_matter(order: list[int], times: list[float]) -> None:
    shuffled = [times[i] for i in order]
    assert fit_curve(SIZES, times) == fit_curve(SIZES[order], shuffled)
    lines = [fit_line(*each, steps=1, wire_factor=1.0) for each in ((SIZES, times), (SIZES[order], shuffled))]
    assert lines[0] == lines[1]


@given(
    op=st.sampled_from(["all_reduce", "all_gather", "all_to_all", "broadcast", "reduce", "gather", "scatter"]),
    alpha=st.floats(1e3, 1e6),
    beta=st.floats(1e8, 1e10),
    world=st.integers(2, 16),
    size=st.integers(2**20, 2**26),
)
@examples(12)
def test_a_world_that_was_not_measured_follows_from_one_that_was(
    op: str, alpha: float, beta: float, world: int, size: int
) -> None:
    calibration = calibrate(sweep(op, alpha_ns=alpha, beta_bytes_per_s=beta), run="run", machine=MACHINE)
    truth = sweep(op, alpha_ns=alpha, beta_bytes_per_s=beta, world_size=world, sizes=(size,))[0]
    assert truth.time_ns_median is not None
    found = time_of(calibration, op, size, world)
    assert np.isclose(found.time_ns, truth.time_ns_median, rtol=0.05)
    assert found.low_ns <= found.time_ns <= found.high_ns


@given(alpha=latencies, beta=rates)
@examples(5)
def test_a_calibration_comes_back_from_the_disk(alpha: float, beta: float) -> None:
    calibration = calibrate(sweep(alpha_ns=alpha, beta_bytes_per_s=beta), run="run", machine=MACHINE)
    assert codec.decode(codec.encode(calibration), Calibration, source="calib.json") == calibration
