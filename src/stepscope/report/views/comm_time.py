"""Time of a collective against message size."""

from __future__ import annotations

from stepscope.core.units import format_duration
from stepscope.report.views._sizes import SizeChart, size_view


def _ends(data: SizeChart) -> str:
    ends = [
        f"{line.name}: {format_duration(line.points[0].value)} to {format_duration(line.points[-1].value)}"
        for line in data.lines[:4]
    ]
    return f" From the smallest to the largest size: {'; '.join(ends)}."


VIEW = size_view(
    "comm_time", "Time against size", lambda _, time_ns: time_ns,
    what="Time per call", label="time per call (µs)", scale=1e-3, more=_ends,
)  # fmt: skip
