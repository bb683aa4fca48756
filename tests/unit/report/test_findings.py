from __future__ import annotations

from typing import Any

import pytest

from stepscope.report.findings import findings, throughput_ratio


def _scaled(fakes: Any, cell_id: str, step_ns: float, rating: str, **changes: Any) -> Any:
    speedup = 20e6 / step_ns
    return fakes.timed_row(
        cell_id, step_ns, speedup=speedup, efficiency=speedup / 2, rating=rating, scaling="strong",
        baseline_cell_id="one", **changes,
    )  # fmt: skip


@pytest.fixture
def base(fakes: Any) -> Any:
    return fakes.timed_row("one", 20e6, strategy="single", world_size=1, speedup=1.0, baseline_cell_id="one")


def test_clear_scaling_is_said_with_its_baseline_and_kind(fakes: Any, base: Any) -> None:
    (said,) = findings([base, _scaled(fakes, "two", 12.5e6, "fair")])
    assert said == "mlp small: ddp on 2 ranks is 1.60x single on 1 rank (strong scaling): 80 % efficiency, fair."


def test_overlapping_intervals_are_no_difference_however_the_medians_lie(fakes: Any, base: Any) -> None:
    (said,) = findings([base, _scaled(fakes, "two", 19e6, "poor", spread=0.06)])
    assert "no significant difference from single on 1 rank" in said


def test_negative_scaling_is_called_by_its_name(fakes: Any, base: Any) -> None:
    (said,) = findings([base, _scaled(fakes, "two", 30e6, "negative")])
    assert "is 0.67x single" in said
    assert said.endswith("negative scaling.")


def test_without_intervals_nothing_is_claimed_to_be_sure(fakes: Any, base: Any) -> None:
    (said,) = findings([base, _scaled(fakes, "two", 12.5e6, "fair", spread=None)])
    assert "too few samples to say how sure" in said


def test_strategies_are_compared_only_where_nothing_else_differs(fakes: Any) -> None:
    fast, slow = fakes.timed_row("a", 10e6), fakes.timed_row("b", 15e6, strategy="naive")
    other_batch = fakes.timed_row("c", 50e6, strategy="interleaved", global_batch=128)
    assert findings([fast, slow, other_batch]) == ("mlp small on 2 ranks: ddp is 50 % faster than naive.",)


def test_strategies_within_their_intervals_are_not_ranked(fakes: Any) -> None:
    rows = [fakes.timed_row("a", 10e6), fakes.timed_row("b", 10.2e6, strategy="naive")]
    assert findings(rows) == ("mlp small on 2 ranks: no significant difference between ddp and naive.",)


def test_cells_that_differ_in_what_a_row_cannot_show_are_not_compared(fakes: Any) -> None:
    assert findings([fakes.timed_row("a", 10e6), fakes.timed_row("b", 50e6)]) == ()


def test_failed_cells_are_counted_by_status(fakes: Any) -> None:
    rows = [fakes.row("a", status="oom"), fakes.row("b", status="oom"), fakes.row("c", status="timeout")]
    assert findings(rows) == ("3 of 3 cells gave no result: out of GPU memory 2, timeout 1.",)


def test_the_range_of_a_ratio_takes_the_far_ends_of_both_intervals(fakes: Any) -> None:
    bounds = throughput_ratio(fakes.timed_row("a", 10e6, spread=0.1), fakes.timed_row("b", 20e6, spread=0.05))
    assert bounds is not None
    assert bounds.ratio == pytest.approx(2.0)
    assert bounds.low == pytest.approx(19e6 / 11e6)
    assert bounds.high == pytest.approx(21e6 / 9e6)
