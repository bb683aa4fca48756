"""A chart as a PNG or SVG file; the same data give the same bytes."""

from __future__ import annotations

import io
from typing import Any, Literal

from stepscope.report.charts._common import Chart
from stepscope.report.charts._style import DPI, style

Format = Literal["png", "svg"]
FORMATS: tuple[Format, ...] = ("png", "svg")


def render(chart: Chart, datum: Any, *, format_: Format = "png") -> bytes:
    """One figure of ``chart``. Title and caption go into the file, for whoever cannot see it or finds it alone."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=chart.size_inches(datum))
        FigureCanvasAgg(figure)
        chart.draw(datum, figure.add_subplot())
        file = io.BytesIO()
        title, caption = f"{chart.title}: {datum.title}", chart.caption(datum)
        metadata: dict[str, Any] = (
            {"Title": title, "Description": caption, "Software": None}
            if format_ == "png"
            else {"Title": title, "Description": caption, "Date": None, "Creator": None}
        )
        figure.savefig(file, format=format_, dpi=DPI, metadata=metadata)
    return file.getvalue()
