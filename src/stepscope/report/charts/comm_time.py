"""Time of a collective against message size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stepscope.core.units import format_duration
from stepscope.records.calibration import Calibration
from stepscope.records.comm import CommRow
from stepscope.report.charts._common import Chart, SizeChart, size_charts
from stepscope.report.charts._lines import draw_lines, lines_caption, size_inches

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def prepare(rows: Sequence[CommRow], calibration: Calibration | None = None) -> tuple[SizeChart, ...]:
    """Times in ns."""
    return size_charts(rows, calibration, _time, with_peak=False)


def draw(data: SizeChart, axes: Axes) -> None:
    draw_lines(data, axes, label="time per call (µs)", scale=1e-3, inside="upper left")


def caption(data: SizeChart) -> str:
    ends = [
        f"{line.name}: {format_duration(line.points[0].value)} to {format_duration(line.points[-1].value)}"
        for line in data.lines[:4]
    ]
    return f"{lines_caption(data, 'Time per call')} From the smallest to the largest size: {'; '.join(ends)}."


def _time(row: CommRow, time_ns: float) -> float | None:
    del row
    return time_ns


CHART = Chart(
    key="comm_time",
    title="Time against size",
    needs=("rows",),
    wants=("calibration",),
    prepare=prepare,
    draw=draw,
    caption=caption,
    size_inches=size_inches,
)
