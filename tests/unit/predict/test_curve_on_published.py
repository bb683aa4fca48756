"""Five sizes of a published curve predict the others."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
from benchmarks.curve_fit import BAR, Model, coverage, curve, errors, every_nth, five_knots, published, two_points

from stepscope.predict.line_fit import fit_line, line_time_ns

DATA = Path(__file__).parents[3].parent / "shared" / "data" / "published"

pytestmark = [
    pytest.mark.shared_data,
    pytest.mark.skipif(not DATA.is_dir(), reason=f"no published curves beside the checkout ({DATA})"),
]


CURVES = cache(partial(published, DATA))


@cache
def errors_of(model: Model) -> dict[str, dict[str, list[float]]]:
    return errors(CURVES(), model)


def median(by_source: dict[str, list[float]]) -> float:
    return float(np.median(np.concatenate([np.array(v) for v in by_source.values()])))


def test_five_sizes_predict_the_middle_ones_within_the_bar_however_they_are_chosen() -> None:
    ours = errors_of(curve)
    assert median(ours["five_sizes()"]) < 0.6 * BAR
    assert median(ours["ends, log-spaced"]) < BAR
    assert median(ours["ends, 3 random"]) < 1.2 * BAR


def test_no_published_curve_is_predicted_worse_than_by_a_half() -> None:
    for off in errors_of(curve)["five_sizes()"].values():
        assert float(np.mean(off)) < 0.3


def test_the_curve_beats_a_line_and_straight_knots() -> None:
    ours, line, knots = (errors_of(model) for model in (curve, two_points, five_knots))
    for design in ours:
        assert median(ours[design]) < 0.75 * median(line[design])
        assert median(ours[design]) < 0.75 * median(knots[design])


def test_between_many_sizes_it_is_nearer_than_straight_knots_for_most() -> None:
    curves = CURVES()
    for n in (2, 3):
        ours, knots = (every_nth(curves, model, n) for model in (curve, five_knots))
        assert np.median(ours) < 0.9 * np.median(knots)
        assert np.mean(ours) < 1.05 * np.mean(knots)


def test_80_percent_intervals_hold_about_80_percent_of_what_was_not_given() -> None:
    assert 0.65 <= coverage(CURVES()) <= 0.95


def test_the_straight_line_is_off_by_nearly_two_where_buckets_lie() -> None:
    worst = []
    for sweep in CURVES():
        line = fit_line(sweep.sizes, sweep.times, steps=1, wire_factor=1.0)
        middle = (sweep.sizes >= 2**16) & (sweep.sizes <= 2**24)
        worst.append(
            max(t / line_time_ns(line, s) for s, t in zip(sweep.sizes[middle], sweep.times[middle], strict=True))
        )
    assert float(np.median(worst)) > 1.3
