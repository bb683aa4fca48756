"""How all charts look: colours that everybody tells apart, light ground, text that is read at a column's width.

Colours: Okabe and Ito, "Color Universal Design", 2008, without yellow, which is lost on white. matplotlib is imported
inside the functions only: charts are drawn rarely.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from stepscope.core.units import format_bytes_binary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
BAD = "#D55E00"
INK = "#222222"
FAINT = "#767676"
GRID = "#DDDDDD"

COLUMN_INCHES = 3.5
"""Width of a text column of a two-column page."""

DPI = 300

Corner = Literal["upper left", "lower right"]

_RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same picture everywhere
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 7.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "text.color": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.3,
    "lines.markersize": 3.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "legend.frameon": False,
    "legend.handlelength": 1.8,
    "legend.borderaxespad": 0.3,
    "legend.labelspacing": 0.3,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "figure.constrained_layout.use": True,
    "svg.fonttype": "path",
    "svg.hashsalt": "stepscope",
    "path.simplify": False,
}


@contextmanager
def style() -> Iterator[None]:
    """Charts made inside look like all others, whatever the user's own matplotlib settings are."""
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_RC)
        yield


def size_axis(axes: Axes, sizes: list[int]) -> None:
    """Message sizes across, logarithmic, ticks at sizes that were measured."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_xscale("log", base=2)
    known = sorted(set(sizes))
    step = max(1, -(-len(known) // 5))
    axes.xaxis.set_major_locator(FixedLocator(known[::-1][::step][::-1]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: size_tick(x)))
    axes.set_xlabel("message size (bytes, 1 KiB = 1024)")
    if len(known) == 1:
        axes.set_xlim(known[0] / 2, known[0] * 2)


def size_tick(size_bytes: float) -> str:
    """``64 KiB``; no decimals that are zero."""
    figure, _, unit = format_bytes_binary(size_bytes).partition(" ")
    return f"{figure.rstrip('0').rstrip('.') if '.' in figure else figure} {unit}"


def log_axis(axes: Axes, *, which: str = "y") -> None:
    """A logarithmic axis with plain numbers: 0.01, 1, 100; 2 and 5 between them where the range is short."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis = axes.yaxis if which == "y" else axes.xaxis
    (axes.set_yscale if which == "y" else axes.set_xscale)("log")
    low, high = sorted(axes.get_ylim() if which == "y" else axes.get_xlim())
    if high / low < 3:  # so little differs that the whole axis should not go into it
        low, high = low / 1.7, high * 1.7
        (axes.set_ylim if which == "y" else axes.set_xlim)(low, high)
    subs = (1.0,) if high / low > 50 else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(subs=subs, numticks=7))
    axis.set_major_formatter(FuncFormatter(lambda x, _: plain_number(x)))
    axis.set_minor_formatter(NullFormatter())


def plain_number(value: float) -> str:
    """``0.001``, ``20``, ``10 000``: no exponents, thin groups of thousands."""
    if value >= 1000:
        return f"{value:,.0f}".replace(",", "\u2009")
    return f"{value:.10f}".rstrip("0").rstrip(".") if value < 1 else f"{value:g}"


def legend(axes: Axes, *, inside: Corner, longest: int, entries: int) -> None:
    """Inside where it fits, else below the chart."""
    if entries < 2:
        return
    if entries <= 4 and longest <= 22:
        axes.legend(loc=inside)
        return
    columns = 2 if longest <= 24 else 1
    axes.legend(loc="upper center", bbox_to_anchor=(0.45, -0.2), ncols=columns)


def legend_inches(longest: int, entries: int) -> float:
    """Height that :func:`legend` takes below a chart."""
    if entries < 2 or (entries <= 4 and longest <= 22):
        return 0.0
    lines = -(-entries // 2) if longest <= 24 else entries
    return 0.08 + 0.145 * lines
