"""The reference lines of speed-up and efficiency: their names never run into each other."""

from __future__ import annotations

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from tests.training_records import scaled, trained

from stepscope.report.charts._style import style
from stepscope.report.charts.speedup_efficiency import CHART


@pytest.mark.parametrize("times", [0.3, 1.0, 40.0])
def test_names_of_reference_lines_stay_apart(times: float) -> None:
    """However far an impossible efficiency pushes 0.8 and 0.9 together."""
    runs = (
        trained("one", 100.0),
        trained("two", 100.0 / (2 * times), ranks=2, strategy="ddp", baseline_id="one"),
    )
    (datum,) = CHART.prepare(runs=runs, scaling=scaled(runs))
    with style():
        figure = Figure(figsize=CHART.size_inches(datum), dpi=200)
        canvas = FigureCanvasAgg(figure)
        CHART.draw(datum, figure.add_subplot())
        canvas.draw()
        found = {text.get_text(): text.get_window_extent() for text in figure.axes[1].texts}
    gap_points = (found["0.9"].x0 - found["0.8"].x1) * 72 / 200
    assert gap_points > 2
