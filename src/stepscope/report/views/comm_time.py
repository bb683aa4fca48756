"""Time of a collective against message size."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.units import format_duration
from stepscope.records.calibration import Calibration
from stepscope.records.comm import CommRow
from stepscope.report.vega import Spec
from stepscope.report.views._common import Figures, View
from stepscope.report.views._sizes import SizeChart, lines_caption, size_chart, size_charts


def prepare(rows: Sequence[CommRow], calibration: Calibration | None = None) -> tuple[SizeChart, ...]:
    """Times in ns."""
    return size_charts(rows, calibration, _time, with_peak=False)


def chart(data: SizeChart) -> Spec:
    return size_chart(data, label="time per call (µs)", scale=1e-3)


def caption(data: SizeChart) -> str:
    ends = [
        f"{line.name}: {format_duration(line.points[0].value)} to {format_duration(line.points[-1].value)}"
        for line in data.lines[:4]
    ]
    return f"{lines_caption(data, 'Time per call')} From the smallest to the largest size: {'; '.join(ends)}."


def _time(row: CommRow, time_ns: float) -> float | None:
    del row
    return time_ns


VIEW = View(
    key="comm_time",
    title="Time against size",
    figures=Figures(
        needs=("rows",),
        wants=("calibration",),
        prepare=prepare,
        chart=chart,
        caption=caption,
    ),
)
