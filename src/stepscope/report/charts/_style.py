"""How all charts look: colours that everybody tells apart, light ground, text that is read at a column's width.

Colours: Okabe and Ito, "Color Universal Design", 2008, without yellow, which is lost on white. matplotlib is imported
inside the functions only: charts are drawn rarely.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from stepscope.core.units import format_bytes_binary
from stepscope.report.charts._text import lines, shortened

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

PAGE_INCHES = 7.16
"""Width of both columns and the space between them."""

HATCH = "////"
"""What stands where a run failed."""

BEHIND = {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85}
"""Ground of a text that lies on something."""

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
    "text.parse_math": False,  # names are users' texts: a dollar in them is a dollar
    "hatch.linewidth": 0.5,
    "hatch.color": FAINT,
    "errorbar.capsize": 1.8,
    "savefig.dpi": "figure",
    "pdf.fonttype": 42,
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


def title_above(axes: Axes, text: str, width_inches: float, *, edge: bool = False) -> None:
    """The chart's title in at most two lines; :func:`title_inches` is the height of the second.

    edge: from the left edge of the figure, where long names beside the axes leave it little room.
    """
    title = lines(text, _title_chars(width_inches, edge=edge))
    if edge:
        axes.figure.suptitle(title, x=0.01, ha="left", fontsize=8, fontweight="bold")
    else:
        axes.set_title(title)


def title_inches(text: str, width_inches: float, *, edge: bool = False) -> float:
    return 0.13 if len(text) > _title_chars(width_inches, edge=edge) else 0.0


def _title_chars(width_inches: float, *, edge: bool) -> int:
    return int((width_inches - (0.1 if edge else 0.55)) * 14)


def legend_below(axes: Axes, entries: Sequence[str], width_inches: float) -> None:
    """The legend under the whole figure, in as many columns as fit; none for a single entry."""
    if len(entries) < 2:
        return
    handles, labels = axes.get_legend_handles_labels()
    axes.figure.legend(
        handles,
        [shortened(label, int(width_inches * 16) - 8) for label in labels],
        loc="outside lower center",
        ncols=_columns(entries, width_inches),
        columnspacing=1.2,
    )


def legend_below_inches(entries: Sequence[str], width_inches: float) -> float:
    """Height that :func:`legend_below` takes."""
    if len(entries) < 2:
        return 0.0
    return 0.06 + 0.145 * -(-len(entries) // _columns(entries, width_inches))


def _columns(entries: Sequence[str], width_inches: float) -> int:
    longest = max(map(len, entries)) + 6  # the handle and the gap
    return max(1, min(len(entries), int(width_inches * 16 / longest)))


Box = tuple[float, float, float, float]
"""Left, bottom, width, height in data coordinates."""


def boxes(axes: Axes, found: Sequence[Box], *, color: str, label: str | None = None) -> None:
    """Filled rectangles as one artist: hundreds of bars cost as much as one."""
    from matplotlib.collections import PolyCollection

    corners = [[(x, y), (x + w, y), (x + w, y + h), (x, y + h)] for x, y, w, h in found]
    axes.add_collection(PolyCollection(corners, facecolors=color, linewidths=0, label=label, zorder=2))


def failed_boxes(axes: Axes, found: Sequence[Box]) -> None:
    """Hatched rectangles: runs without a result."""
    from matplotlib.collections import PolyCollection

    corners = [[(x, y), (x + w, y), (x + w, y + h), (x, y + h)] for x, y, w, h in found]
    axes.add_collection(
        PolyCollection(corners, facecolors="#F4F4F4", edgecolors=FAINT, hatch=HATCH, linewidths=0.5, zorder=2)
    )


Whisker = tuple[float, float, float]
"""Place, low, high in data coordinates."""


def whiskers(axes: Axes, found: Sequence[Whisker], *, across: bool = False, cap: float = 0.0) -> None:
    """Intervals as one artist, with ends ``cap`` wide (data units)."""
    from matplotlib.collections import LineCollection

    segments: list[Any] = []
    for at, low, high in found:
        strokes = [((at, low), (at, high))]
        strokes += [((at - cap / 2, end), (at + cap / 2, end)) for end in (low, high)]
        segments += [tuple((y, x) for x, y in stroke) for stroke in strokes] if across else strokes
    axes.add_collection(LineCollection(segments, colors=INK, linewidths=0.8, zorder=3))


def text_at(
    axes: Axes,
    x: float,
    y: float,
    text: str,
    *,
    dx: float = 0.0,
    dy: float = 0.0,
    room: bool = False,
    **how: Any,
) -> None:
    """Small text ``dx``, ``dy`` points from a place. room: kept free for it; else that is the caller's business."""
    from matplotlib.transforms import ScaledTranslation

    shift = ScaledTranslation(dx / 72, dy / 72, axes.figure.dpi_scale_trans)
    axes.text(x, y, text, transform=axes.transData + shift, fontsize=6.5, zorder=5, clip_on=False, **how).set_in_layout(
        room
    )


def from_zero(axes: Axes, top: float, *, which: str = "y", ticks: int = 5) -> None:
    """A linear axis from 0 with plain numbers."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis = axes.yaxis if which == "y" else axes.xaxis
    (axes.set_ylim if which == "y" else axes.set_xlim)(0, top or 1.0)
    axis.get_offset_text().set_visible(False)
    axis.set_major_locator(MaxNLocator(nbins=ticks, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda x, _: plain_number(x)))


def tick_lines(axes: Axes, which: Literal["x", "y", "both"]) -> None:
    """Grid lines along one axis only; the other one has names, not numbers."""
    axes.grid(visible=False)
    axes.grid(visible=True, axis=which)
    if which != "both":
        axes.tick_params(axis="x" if which == "y" else "y", length=0)
