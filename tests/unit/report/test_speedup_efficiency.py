"""The reference lines of speed-up and efficiency: their names never run into each other."""

from __future__ import annotations

import json
import re

import pytest
from tests.training_records import scaled, trained

from stepscope.report.render import picture
from stepscope.report.views.scaling import speedup_efficiency_charts


@pytest.mark.parametrize("times", [0.3, 1.0, 40.0])
def test_names_of_reference_lines_stay_apart(times: float) -> None:
    """However far an impossible efficiency pushes 0.8 and 0.9 together."""
    runs = (trained("one", 100.0), trained("two", 100.0 / (2 * times), ranks=2, strategy="ddp", baseline_id="one"))
    (chart,) = speedup_efficiency_charts(runs, scaled(runs))
    svg = picture.page_svg(json.dumps(chart.spec))
    found = {
        text: (anchor, float(x))
        for anchor, x, text in re.findall(
            r'<text text-anchor="(\w+)" transform="translate\(([\d.]+),-[^>]*>(0\.[89])<', svg
        )
    }
    assert found["0.8"][0] == "end"
    assert found["0.9"][0] == "start"
    assert found["0.9"][1] - found["0.8"][1] >= 2
