"""What all charts have in common, in the words of Vega-Lite: one description for the page, for pictures and for papers.

Lengths are points (1/72 inch). Colours are the page's CSS variables: in the page they follow light, dark and print, in files
:func:`resolved` puts the light ones in their place. Colours of series: after Okabe and Ito, "Color Universal Design", 2008,
without yellow, which is lost on white.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import isfinite
from typing import Any, TypeGuard

from stepscope.core.dataclass import dataclass
from stepscope.core.units import format_bytes_binary, format_number
from stepscope.report.names import lines

Spec = dict[str, Any]
"""A Vega-Lite description, or a part of one."""


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart. key: part of a file's name. caption: what is seen, in sentences that need no chart.

    view: its view's key; about: that view's title; stem: of its files, unique among all of a report.
    """

    key: str
    title: str
    caption: str
    spec: Spec
    view: str = ""
    about: str = ""
    stem: str = ""

    @property
    def full_title(self) -> str:
        return f"{self.about}: {self.title}"

    @property
    def _panels(self) -> Sequence[Spec]:
        panels: Sequence[Spec] = self.spec.get("hconcat", (self.spec,))
        return panels

    @property
    def wide(self) -> bool:
        """Whether it takes a page's whole width."""
        return bool(sum(panel.get("width", 0) for panel in self._panels) > COLUMN)

    @property
    def one_bar(self) -> bool:
        """Whether its bars are all of one run: files have it by name, a page shows the figure in a table."""
        axes = [panel.get("encoding", {}).get("y", {}) for panel in self._panels]
        return all(axis.get("type") == "ordinal" and len(axis["scale"]["domain"]) == 1 for axis in axes)


SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"

PALETTE = {
    "ink": "#1c2126", "faint": "#5a646e", "rule": "#d5dae0", "ground": "#ffffff", "panel": "#f6f7f8", "bad": "#b3261e",
    "c0": "#0072b2", "c1": "#c24a00", "c2": "#00805e", "c3": "#b0528a", "c4": "#a86c00", "c5": "#2b8fcf", "c6": "#444c55",
    "k-compute": "#0072b2", "k-exposed": "#d55e00", "k-hidden": "#e0a030", "k-copies": "#009e73", "k-idle": "#e4e8ec",
    "k-wait": "#cc79a7", "k-late": "#6a3d9a",
    "k-forward": "#56b4e9", "k-other": "#9aa4ae",
}  # fmt: skip
"""Light colours by the names that templates/page.css gives them."""


def color(name: str) -> str:
    """Return the colour ``name`` of the page."""
    assert name in PALETTE, name
    return f"var(--{name})"


COLORS = tuple(color(f"c{n}") for n in range(7))
INK, FAINT, RULE, BAD = color("ink"), color("faint"), color("rule"), color("bad")
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-left")
DASHES = ([1, 0], [4, 1.5], [1, 1], [6, 1.5, 1, 1.5], [2, 2], [8, 2], [3, 1, 1, 1])

COLUMN, PAGE = 252, 515
"""Width of a text column of a two-column page, and of both columns with the space between them."""

BETWEEN, BESIDE = 0.3, 0.25
"""Space between the clusters of an axis of names, and before the first, as shares of a cluster's step."""

MAX_LINES = 7
"""Lines of one chart: as many as there are colours that everybody tells apart."""

FONT = "Liberation Sans, Arial, Helvetica, sans-serif"

_LABELS = {
    "labelFontSize": 7, "titleFontSize": 7.5, "titleFontWeight": "normal", "labelColor": INK, "titleColor": INK,
}  # fmt: skip

_CONFIG: Spec = {
    "font": FONT,
    "background": None,
    "view": {"stroke": None},
    "title": {"anchor": "start", "frame": "bounds", "fontSize": 8, "fontWeight": "bold", "color": INK, "offset": 6},
    "axis": {
        **_LABELS, "domainColor": FAINT, "tickColor": FAINT, "gridColor": RULE, "gridWidth": 0.5, "domainWidth": 0.6,
        "tickWidth": 0.6, "tickSize": 3, "titlePadding": 4, "labelLimit": 400, "titleLimit": 0,
    },
    "legend": {
        **_LABELS, "orient": "bottom", "symbolSize": 35, "symbolStrokeWidth": 0, "symbolOpacity": 1, "symbolDash": [1, 0],
        "labelLimit": 0, "offset": 4, "rowPadding": 1,
        "columnPadding": 8, "titleLimit": 0,
    },
    "text": {"fontSize": 6.5, "color": INK},
    "range": {"category": list(COLORS)},
    "aria": True,
}  # fmt: skip


def resolved(text: str) -> str:
    """Put the light colours in place of the page's variables in ``text``: what stands alone has no page."""
    return re.sub(r"var\(--([\w-]+)\)", lambda match: PALETTE[match[1]], text)


def chart(title: str, *layers: Spec, width: int, height: float, x: Spec, y: Spec, **more: Any) -> Spec:
    """Put layers over the same axes. width: of the whole picture; height: of the plot alone."""
    return {
        **head(title, width),
        "width": width,
        "height": round(height, 1),
        "autosize": {"type": "fit-x", "contains": "padding"},
        "encoding": {"x": x, "y": y},
        "layer": list(layers),
        **more,
    }


def head(title: str, width: int) -> Spec:
    """Return what every description begins with."""
    return {
        "$schema": SCHEMA,
        "config": _CONFIG,
        "padding": 4,
        "title": {"text": lines(title, int(width / 72 * 14)).split("\n")},
    }


_PLACES = {"x", "y", "x2", "y2", "xOffset", "text", "detail"}
"""Channels of a layer that are never a property of its mark."""


def layer(mark: str, values: Iterable[Mapping[str, Any]], **how: Any) -> Spec:
    """Return one kind of mark over its own data; ``said`` of a value is what the mark tells. Figures have six digits.

    how: of the mark; and where it stands, as an encoding, the name of a field, or a number of points.
    """
    rows = [{name: sig(at) if isinstance(at, float) else at for name, at in value.items()} for value in values]
    described = any("said" in row for row in rows)
    encoding = {name: _mark_channel(name, at) for name, at in how.items() if name in _PLACES or isinstance(at, dict)}
    look = {name: at for name, at in how.items() if name not in encoding}
    return {
        "data": {"values": rows},
        "mark": {"type": mark, **({} if described else {"aria": False}), **look},
        "encoding": {**encoding, **({"description": {"field": "said", "type": "nominal"}} if described else {})},
    }


def _mark_channel(name: str, at: Any) -> Any:
    if isinstance(at, str):
        return {"field": at, "type": "quantitative"} if name in ("x", "y") else {"field": at}
    return {"value": at} if isinstance(at, int | float) else at


def dots(values: Iterable[Mapping[str, Any]], **place: Any) -> Spec:
    """Return the points of lines."""
    return layer("point", values, **place, filled=True, size=16, opacity=1)


UPRIGHT: Spec = {"y": 0, "y2": {"value": "height"}}
"""From top to bottom."""


def telling(values: Sequence[dict[str, Any]], sentence: str) -> Sequence[dict[str, Any]]:
    """Return the points of one line or area, the first of which tells ``sentence``."""
    values[0]["said"] = sentence
    return values


def unsaid(values: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return ``values`` for a mark that tells nothing: another one over them does."""
    return [{key: content for key, content in value.items() if key != "said"} for value in values]


def by_series(names: Collection[str], colors: Sequence[str] = COLORS, *, width: int = COLUMN) -> Spec:
    """Colour by ``series``, with a legend below in as many columns as fit; none for a single entry."""
    fits = int(width / 72 * 16)
    longest = max((min(len(name), fits - 8) for name in names), default=0) + 6
    columns = max(1, min(len(names), fits // longest))
    legend = {"columns": columns, "columnPadding": round(6 + 0.7 * longest), "labelLimit": width - 30}
    return _series_color(names, [colors[n % len(colors)] for n in range(len(names))], legend)


def shape_by_series(names: Collection[str]) -> Spec:
    """Mark by ``series``; the legend joins that of the colours, and where those begin again it is another marker."""
    shapes = [SHAPES[(n + n // len(COLORS)) % len(SHAPES)] for n in range(len(names))]
    return _series_color(names, shapes, {})


def _series_color(names: Collection[str], looks: Sequence[str], legend: Spec) -> Spec:
    return {
        "field": "series",
        "type": "nominal",
        "scale": {"domain": list(names), "range": looks},
        "legend": None if len(names) < 2 else {"title": None, **legend},
    }


PLAIN = "format(datum.value, datum.value >= 1000 ? ',.0f' : '~g')"
"""Numbers of an axis: 0.001, 20, 10,000; no exponents."""

_SIZES = (
    "datum.value < 1024 ? datum.value + ' B' : datum.value < 1048576 ? format(datum.value / 1024, '~r') + ' KiB'"
    " : datum.value < 1073741824 ? format(datum.value / 1048576, '~r') + ' MiB'"
    " : format(datum.value / 1073741824, '~r') + ' GiB'"
)


def _numbers_axis(field: str, title: str, scale: Spec, ticks: Spec, /, **axis: Any) -> Spec:
    """Return an axis of numbers, written plainly unless ``axis`` says how."""
    labelled = {**ticks, "labelExpr": PLAIN, **axis}
    return {"field": field, "type": "quantitative", "title": title, "scale": scale, "axis": labelled}


def number_axis(field: str, title: str, *, low: float | None = None, top: float | None = None, **axis: Any) -> Spec:
    """Return a linear axis with plain numbers.

    low: where it begins; None: near the data. top: where it ends; None: after them.
    """
    scale: Spec = {"nice": False} if top is not None else {"nice": True}
    scale["zero"] = low == 0.0
    domain = {name: sig(end) for name, end in (("domainMin", low), ("domainMax", top)) if end is not None}
    return _numbers_axis(field, title, {**scale, **domain}, {"tickCount": 5}, **axis)


def whole_axis(field: str, title: str, values: Iterable[float]) -> Spec:
    """Return an axis of whole numbers of what is drawn only: there is no epoch 2.5, nor one before the first."""
    drawn = sorted({float(value) for value in values})
    low, high = drawn[0], drawn[-1]
    step = next(s * 10**p for p in range(310) for s in (1, 2, 5) if (high - low) / (s * 10**p) <= 7)
    first = -(-low // step) * step
    ticks = [first + n * step for n in range(int((high - first) // step) + 1)] or [low]
    room = 0.5 if low == high else (high - low) * 0.03
    scale = {"domain": [sig(low - room), sig(high + room)], "nice": False, "zero": False}
    return _numbers_axis(field, title, scale, {"values": ticks, "grid": True})


def log_axis(field: str, title: str, values: Iterable[float], **axis: Any) -> Spec:
    """Return a logarithmic axis around ``values`` with plain numbers: 0.01, 1, 100; in a short range 2 and 5 between."""
    low, high = min(values := list(values)), max(values)
    if high / low < 3:  # so little differs that the whole axis should not go into it
        low, high = low / 1.7, high * 1.7
    low, high = low / 1.15, high * 1.15
    subs = (1,) if high / low > 50 else (1, 2, 5)
    ticks = [s * 10.0**p for p in range(-12, 19) for s in subs if low <= s * 10.0**p <= high]
    shown = [sig(tick) for tick in ticks[:: max(1, -(-len(ticks) // 7))]]
    scale = {"type": "log", "domain": [sig(low), sig(high)], "nice": False}
    return _numbers_axis(field, title, scale, {"values": shown}, **axis)


def doubling_axis(field: str, title: str, ticks: Sequence[float], domain: tuple[float, float], **axis: Any) -> Spec:
    """Return an axis on which each doubling is as far as the next."""
    scale = {"type": "log", "base": 2, "domain": [sig(end) for end in domain], "nice": False}
    return _numbers_axis(field, title, scale, {"values": list(ticks)}, **axis)


def size_axis(field: str, sizes: Iterable[int]) -> Spec:
    """Return an axis of message sizes, ticks at sizes that were measured."""
    measured = sorted(set(sizes))
    step = max(1, -(-len(measured) // 5))
    ends = (measured[0] / 2, measured[0] * 2) if len(measured) == 1 else (measured[0] / 1.2, measured[-1] * 1.2)
    title = "message size (bytes, 1 KiB = 1024)"
    return doubling_axis(field, title, measured[::-1][::step][::-1], ends, labelExpr=_SIZES)


WIDE = 4.2
"""Width of a character of an axis in the widest of the usual fonts: the page is shown in whichever is there."""

DOWN = ("row", "run", "rank", "sender")
"""Fields whose names stand below each other."""


def width_of(names: Iterable[str]) -> float:
    """Return the points that the longest line of names takes."""
    return WIDE * max((len(line) for name in names for line in name.split("\n")), default=0)


def name_axis(field: str, names: Sequence[str], title: str | None = None, **axis: Any) -> Spec:
    """Return an axis of names in their order; each may have several lines."""
    second = {
        "test": "indexof(datum.label, '\\n') >= 0",
        "value": -4,
    }  # lines grow downwards from the first one's middle
    more: Spec = {"labelOffset": {"condition": second, "value": 0}, "minExtent": round(width_of(names) + 4)}
    more = more if field in DOWN else {}
    return {
        "field": field,
        "type": "ordinal",
        "title": title,
        "sort": None,
        "scale": {"domain": list(names), "paddingInner": BETWEEN, "paddingOuter": BESIDE},
        "axis": {
            "ticks": False,
            "grid": False,
            "labelExpr": "split(datum.label, '\\n')",
            "labelAngle": 0,
            **more,
            **axis,
        },
    }


def apart(names: Sequence[str]) -> list[str]:
    """Return ``names`` with a number where one came before: rows of one name are two rows."""
    return [f"{name} ({names[: n + 1].count(name)})" if name in names[:n] else name for n, name in enumerate(names)]


def sig(value: float) -> float:
    """Round to six digits: what the last ones are depends on the machine's mathematics library."""
    return float(f"{value:.6g}")


def drawable(value: float | None) -> TypeGuard[float]:
    """Return whether there is a figure to draw: a loss may have become no number."""
    return value is not None and isfinite(value)


def size_tick(size_bytes: float) -> str:
    """Write ``64 KiB``; no decimals that are zero."""
    figure, _, unit = format_bytes_binary(size_bytes).partition(" ")
    return f"{figure.rstrip('0').rstrip('.') if '.' in figure else figure} {unit}"


def whiskers(values: Sequence[Mapping[str, Any]], *, across: bool = False, **place: Any) -> list[Spec]:
    """Draw intervals from ``low`` to ``high`` with ends; other fields say where they stand."""
    if not values:
        return []
    along, orient = ("x", "vertical") if across else ("y", "horizontal")
    ends = [{**value, "end": value[end]} for value in values for end in ("low", "high")]
    return [
        layer("rule", values, **{along: "low", f"{along}2": "high"}, **place, color=INK, strokeWidth=0.8),
        layer("tick", ends, **{along: "end"}, **place, color=INK, thickness=0.8, size=4, orient=orient),
    ]


def words(values: Sequence[Mapping[str, Any]], **how: Any) -> list[Spec]:
    """Write ``text`` of each value on a ground of its own, so that it is read where it lies on something."""
    on_ground = {"stroke": color("ground"), "strokeWidth": 2, "strokeOpacity": 0.85}
    return [layer("text", values, **ground, **how, text="text") for ground in (on_ground, {})] if values else []


FAILED = {"color": "transparent", "stroke": BAD, "strokeDash": [3, 2], "strokeWidth": 0.8}
"""How the mark looks that stands where a run failed."""


def figure_said(value: float, axis: str) -> str:
    """Write a figure with the unit of its axis: ``time (ms)`` -> ``12.3 ms``."""
    unit = axis.partition("(")[2].rstrip(")")
    figure = format_number(value)
    return f"{figure}{unit}" if unit == "x" else f"{figure} {unit}".rstrip()
