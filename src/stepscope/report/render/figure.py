"""A chart as a PNG, SVG or PDF file; the same data give the same bytes."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from stepscope.report.charts._common import Chart
from stepscope.report.charts._style import DPI, style
from stepscope.report.charts._text import clean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Format = Literal["png", "svg", "pdf"]
FORMATS: tuple[Format, ...] = ("png", "svg", "pdf")


def render(chart: Chart, datum: Any, *, format_: Format = "png") -> bytes:
    """One figure of ``chart``. Title and caption go into the file, for whoever cannot see it or finds it alone."""
    return render_all(chart, datum, (format_,))[0]


def render_all(chart: Chart, datum: Any, formats: Sequence[Format]) -> tuple[bytes, ...]:
    """One figure in several formats, drawn and laid out once."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with style(), warnings.catch_warnings():
        # a name in a script that the font lacks is drawn as boxes: worth no line on anybody's terminal
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure = Figure(figsize=chart.size_inches(datum), dpi=DPI)
        FigureCanvasAgg(figure)
        chart.draw(datum, figure.add_subplot())
        _lay_out(figure)
        title = clean(f"{chart.title}: {datum.title}", 400)
        caption = clean(chart.caption(datum), 4000)
        files = []
        for name in formats:
            file = io.BytesIO()
            figure.savefig(file, format=name, metadata=_metadata(name, title, caption))
            files.append(file.getvalue())
    return tuple(files)


def _lay_out(figure: Figure) -> None:
    """Place everything once; with an engine left, every file would be laid out, and drawn twice for that."""
    import matplotlib as mpl

    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
    with mpl.rc_context({"figure.constrained_layout.use": False}):
        figure.set_layout_engine(None)


def _metadata(format_: Format, title: str, caption: str) -> dict[str, Any]:
    """Title and caption, and neither date nor version: files of the same data are equal."""
    if format_ == "png":
        return {"Title": title, "Description": caption, "Software": None}
    if format_ == "svg":
        return {"Title": title, "Description": caption, "Date": None, "Creator": None}
    return {"Title": title, "Subject": caption, "CreationDate": None, "Creator": None, "Producer": None}
