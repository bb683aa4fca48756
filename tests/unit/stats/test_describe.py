from __future__ import annotations

import pytest

from stepscope.stats.order import summary


def test_summary_of_one_to_a_hundred() -> None:
    figures = summary(list(range(1, 101)))
    assert (figures.n, figures.min, figures.max, figures.median, figures.mean) == (100, 1, 100, 50.5, 50.5)
    assert figures.p90 == pytest.approx(90.1)
    assert figures.p99 == pytest.approx(99.01)


def test_a_single_sample_has_figures_but_no_interval() -> None:
    figures = summary([42])
    assert (figures.median, figures.low, figures.high, figures.p99) == (42, None, None, 42)
