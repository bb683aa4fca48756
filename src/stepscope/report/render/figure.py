"""A chart as a PNG, SVG or PDF file; the same data give the same bytes."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
        canvas = FigureCanvasAgg(figure)
        chart.draw(datum, figure.add_subplot())
        title = clean(f"{chart.title}: {datum.title}", 400)
        caption = clean(chart.caption(datum), 4000)
        with _laid_out(figure):
            return tuple(
                _png(canvas, title, caption) if name == "png" else _saved(figure, name, title, caption)
                for name in formats
            )


def _png(canvas: Any, title: str, caption: str) -> bytes:
    import numpy as np

    from stepscope.report.render import png

    canvas.draw()
    return png.encode(np.asarray(canvas.buffer_rgba()), dpi=DPI, texts={"Title": title, "Description": caption})


def _saved(figure: Figure, format_: Format, title: str, caption: str) -> bytes:
    """With title and caption, and neither date nor version: files of the same data are equal."""
    metadata: dict[str, Any] = (
        {"Title": title, "Description": caption, "Date": None, "Creator": None}
        if format_ == "svg"
        else {"Title": title, "Subject": caption, "CreationDate": None, "Creator": None, "Producer": None}
    )
    file = io.BytesIO()
    figure.savefig(file, format=format_, metadata=metadata)
    return file.getvalue()


@contextmanager
def _laid_out(figure: Figure) -> Iterator[None]:
    """Everything has its place, once: with an engine left, each file would be laid out, and drawn twice for that."""
    import matplotlib as mpl

    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
    # savefig restores "no engine" to what the settings say
    with mpl.rc_context({"figure.constrained_layout.use": False}):
        figure.set_layout_engine(None)
        yield
