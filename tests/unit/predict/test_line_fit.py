"""alpha and beta come back from times that follow them, whatever else the times do."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.core.errors import StepscopeError, UsageError
from stepscope.core.units import format_size
from stepscope.predict.line_fit import (
    fit_latency,
    fit_line,
    line_fails,
    line_time_ns,
    link_rate_bytes_per_s,
    noise_of,
    wire_time_ns,
)
from stepscope.records.calibration import SizeError

SIZES = np.array([1024.0 * 4**i for i in range(9)])


def times(alpha_ns: float, beta: float, *, steps: int = 2, wire_factor: float = 1.0, credit: float = 0.0):
    return steps * alpha_ns + np.maximum(wire_factor * SIZES - credit, 0) / beta * 1e9


def test_an_exact_line_comes_back_with_no_error_and_a_narrow_interval() -> None:
    line = fit_line(SIZES, times(20_000, 5e9, steps=6, wire_factor=1.5), steps=6, wire_factor=1.5)
    assert line.alpha_ns == pytest.approx(20_000, rel=1e-6)
    assert line.beta_bytes_per_s == pytest.approx(5e9, rel=1e-6)
    assert line.r_squared == pytest.approx(1.0)
    assert line.max_relative_error < 1e-6
    assert line.credit_bytes == 0
    assert line.alpha_ns_low == pytest.approx(line.alpha_ns_high, rel=1e-3)


def test_small_messages_count_as_much_as_large_ones() -> None:
    noisy = times(20_000, 1e9)
    noisy[-1] *= 1.05  # of 67 ms: 80 times the whole latency
    line = fit_line(SIZES, noisy, steps=2, wire_factor=1.0)
    assert line.alpha_ns == pytest.approx(20_000, rel=0.05)


@pytest.mark.parametrize("where", range(9))
@pytest.mark.parametrize("factor", [0.2, 5.0])
def test_one_wrong_size_does_not_move_the_line_far(where: int, factor: float) -> None:
    wrong = times(50_000, 1e9)
    wrong[where] *= factor
    line = fit_line(SIZES, wrong, steps=2, wire_factor=1.0)
    assert line.alpha_ns == pytest.approx(50_000, rel=0.1)
    assert line.beta_bytes_per_s == pytest.approx(1e9, rel=0.1)


def test_a_size_whose_median_is_uncertain_counts_little() -> None:
    wrong = times(50_000, 1e9)
    wrong[3:5] *= 3
    noise = np.where(np.isin(np.arange(9), (3, 4)), 0.5, 0.01)
    line = fit_line(SIZES, wrong, steps=2, wire_factor=1.0, noise=noise)
    assert line.alpha_ns == pytest.approx(50_000, rel=0.03)
    assert line.beta_bytes_per_s == pytest.approx(1e9, rel=0.03)


def test_the_intervals_hold_the_truth_about_as_often_as_they_claim() -> None:
    rng = np.random.default_rng(1)
    held = []
    for seed in range(60):
        noisy = times(50_000, 1e9) * np.exp(0.05 * rng.standard_normal(9))
        line = fit_line(SIZES, noisy, steps=2, wire_factor=1.0, seed=seed)
        assert line.alpha_ns_low is not None
        assert line.beta_bytes_per_s_low is not None
        held.append(line.alpha_ns_low <= 50_000 <= line.alpha_ns_high)
        held.append(line.beta_bytes_per_s_low <= 1e9 <= line.beta_bytes_per_s_high)
    assert 0.8 <= np.mean(held) <= 1.0


def test_times_that_do_not_grow_show_no_rate() -> None:
    line = fit_line(SIZES, np.full(9, 80_000.0), steps=2, wire_factor=1.0)
    assert line.alpha_ns == pytest.approx(40_000)
    assert line.beta_bytes_per_s is None
    assert line_time_ns(line, 2**30) == pytest.approx(80_000)


def test_the_burst_of_a_token_bucket_is_not_taken_for_a_faster_link() -> None:
    shaped = times(90_000, 0.1195e9, credit=65_536)
    line = fit_line(SIZES, shaped, steps=2, wire_factor=1.0)
    assert link_rate_bytes_per_s(line.beta_bytes_per_s) * 8 == pytest.approx(1e9, rel=0.03)
    assert line.alpha_ns == pytest.approx(90_000, rel=0.03)
    assert line.credit_bytes == pytest.approx(65_536, rel=0.3)
    assert wire_time_ns(line, 1000) == 0


def test_a_ramp_towards_the_full_rate_is_not_a_burst() -> None:
    base = times(50_000, 1e9)
    ramp = base + 1.5 * np.sqrt(100_000 * SIZES)
    assert fit_line(SIZES, ramp, steps=2, wire_factor=1.0).credit_bytes == 0


@pytest.mark.parametrize(
    ("sizes", "what"), [([1024, 4096, 65536], "3 sizes"), ([1024, 2048, 4096, 8192], "too close"), ([], "0 sizes")]
)
def test_too_few_or_too_close_sizes_are_refused_with_a_way_out(sizes: list[int], what: str) -> None:
    with pytest.raises(UsageError, match=what) as refused:
        fit_line(sizes, [1000.0] * len(sizes), steps=2, wire_factor=1.0)
    assert "--sizes" in str(refused.value.fix)


def test_the_same_size_several_times_is_one_size() -> None:
    with pytest.raises(UsageError, match="2 sizes"):
        fit_line([1024, 1024, 1024, 65536], [1.0, 2.0, 3.0, 4.0], steps=2, wire_factor=1.0)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_impossible_times_are_refused(bad: float) -> None:
    values = times(50_000, 1e9)
    values[2] = bad
    with pytest.raises(StepscopeError, match="positive and finite"):
        fit_line(SIZES, values, steps=2, wire_factor=1.0)


def test_a_latency_is_the_median_and_carries_its_widest_interval() -> None:
    line = fit_latency([90_000, 100_000, 140_000], steps=2, intervals_ns=[(45_000, 55_000), (40_000, 52_000)])
    assert line.alpha_ns == 50_000
    assert (line.alpha_ns_low, line.alpha_ns_high) == (40_000, 55_000)
    assert line.beta_bytes_per_s is None
    assert line_time_ns(line, 0) == 100_000


def errors(ratios: list[float]) -> list[SizeError]:
    return [
        SizeError(size_bytes=1024 * 4**i, measured_ns=100 * r, line_ns=100.0, curve_ns=100 * r)
        for i, r in enumerate(ratios)
    ]


def test_where_the_line_fails_is_said_in_a_sentence() -> None:
    assert line_fails(errors([1.0, 1.1, 0.9])) is None
    assert line_fails(errors([1.0, 1.3, 1.9, 1.4, 1.0])) == (
        "the straight line is up to 1.9x too low from 4 KiB to 64 KiB"
    )
    assert line_fails(errors([0.5, 1.0, 1.5])) == (
        "the straight line is 2.0x too high at 1 KiB, 1.5x too low at 16 KiB"
    )


def test_a_slip_that_the_curve_does_not_follow_is_no_failure_of_the_line() -> None:
    slip = SizeError(size_bytes=1024, measured_ns=300.0, line_ns=100.0, curve_ns=105.0)
    assert line_fails([slip]) is None


def test_sizes_and_noise_are_shown_and_read() -> None:
    assert [format_size(s) for s in (1024, 65536, 1.5 * 2**20, 25 * 2**20)] == ["1 KiB", "64 KiB", "1.5 MiB", "25 MiB"]
    assert noise_of(None, 5.0) == 0
    assert noise_of(90.0, 110.0) == pytest.approx(0.0512, rel=0.01)


def test_headers_take_what_tc_counts() -> None:
    assert link_rate_bytes_per_s(1448) == 1514
