"""Bars across, one a run, of parts that add up; names of any length stand at their left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from stepscope.core.dataclass import dataclass
from stepscope.core.words import listed
from stepscope.report import vega
from stepscope.report.names import lines
from stepscope.report.vega import Spec

if TYPE_CHECKING:
    from stepscope.report.shared.runs import DatasetPart

MAX_ROWS = 20
NAME_CHARS = 24
"""Characters of a name's line in a chart of one column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackRow:
    """One bar. parts: base units, in the order of ``kinds``. low, high: interval of their sum, or at ``whisker_at``.

    text: stands at its end. failure: why it has no parts.
    """

    name: str
    parts: tuple[float, ...] = ()
    low: float | None = None
    high: float | None = None
    text: str = ""
    failure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacks:
    """Bars of one chart. kinds: what the parts are. whole: end of the axis; None: open."""

    key: str
    title: str
    kinds: tuple[str, ...]
    colors: tuple[str, ...]
    rows: tuple[StackRow, ...]
    axis: str
    scale: float
    whole: float | None = None


def stacks_of(
    part: DatasetPart,
    rows: Iterable[StackRow],
    axis: str,
    scale: float,
    *,
    kinds: tuple[str, ...],
    colors: tuple[str, ...] = vega.COLORS[:1],
    whole: float | None = None,
) -> Stacks:
    """Return the bars of the runs of one chart of a data set."""
    rows, key, title = tuple(rows), part.key, part.title
    return Stacks(key=key, title=title, kinds=kinds, colors=colors, rows=rows, axis=axis, scale=scale, whole=whole)


def sorted_rows(data: Stacks) -> list[StackRow]:
    """Return the rows with a result, the longest bar first."""
    return sorted((row for row in data.rows if row.failure is None), key=lambda row: -sum(row.parts))


def stacks_chart(data: Stacks) -> Spec:
    """Return the bars, the first row on top; what failed has a dashed outline and its reason."""
    longest = max((len(row.name) for row in data.rows), default=0)
    width, wrap = (vega.COLUMN, NAME_CHARS) if longest <= 2 * NAME_CHARS else (vega.PAGE, 2 * NAME_CHARS)
    names = vega.apart([lines(row.name, wrap) for row in data.rows])
    ends = [max(sum(row.parts), row.high or 0.0) for row in data.rows]
    top = (data.whole if data.whole is not None else max(ends, default=0.0)) * data.scale or 1.0
    bars, texts, lost, ranged = [], [], [], []
    for row, name, end in zip(data.rows, names, ends, strict=True):
        if row.failure is not None:
            lost.append({"row": name, "from": 0, "to": vega.sig(0.14 * top), "said": f"{row.name}: {row.failure}"})
            texts.append({"row": name, "from": vega.sig(0.14 * top), "text": row.failure})
            continue
        at = 0.0
        for kind, part in zip(data.kinds, row.parts, strict=True):
            if part > 0:
                ends_ = {"from": vega.sig(at * data.scale), "to": vega.sig((at + part) * data.scale)}
                sentence = f"{row.name}: {kind} {vega.figure_said(part * data.scale, data.axis)}"
                bars.append({"row": name, "series": kind, **ends_, "said": sentence})
            at += part
        if row.low is not None and row.high is not None:
            ranged.append({"row": name, "low": vega.sig(row.low * data.scale), "high": vega.sig(row.high * data.scale)})
        if row.text:
            texts.append(
                {"row": name, "from": vega.sig(top if data.whole is not None else end * data.scale), "text": row.text}
            )
    chars = max((len(row.text or row.failure or "") for row in data.rows), default=0)
    room = 1.02 + 0.055 * chars / (width / 72 - 1.6)
    axis: Spec = (
        {"values": [vega.sig(top * part) for part in (0.0, 0.25, 0.5, 0.75, 1.0)]} if data.whole is not None else {}
    )
    span = {"x": {"field": "from", "type": "quantitative"}, "x2": {"field": "to"}}
    beside = vega.WIDE * max((len(line) for name in names for line in name.split("\n")), default=0)
    hue = vega.by_series(data.kinds, data.colors, width=int(width - beside))
    return vega.chart(
        data.title,
        vega.layer("bar", bars, {**span, "color": hue}),
        *([vega.layer("bar", lost, span, **vega.FAILED)] if lost else []),
        *vega.whiskers(ranged, across=True),
        *vega.words(texts, {}, align="left", dx=3),
        width=width,
        height=max(36, sum(22 if "\n" in name else 14 for name in names)),
        x=vega.number_axis("from", data.axis, low=0.0, top=top * room, **axis),
        y=vega.name_axis("row", names),
    )


def stacked_areas(
    at: Sequence[float], parts: Iterable[tuple[str, Sequence[float], str]], scale: float
) -> list[list[dict[str, Any]]]:
    """Return the points of areas on top of each other over ``at``.

    parts: name, base units at each place, what the area tells.
    """
    areas = []
    below = [0.0] * len(at)
    for name, values, sentence in parts:
        above = [low + value for low, value in zip(below, values, strict=True)]
        points: list[dict[str, Any]] = [
            {"x": vega.sig(x), "from": vega.sig(low * scale), "to": vega.sig(high * scale), "series": name}
            for x, low, high in zip(at, below, above, strict=True)
        ]
        points[0]["said"] = sentence
        areas.append(points)
        below = above
    return areas


AREA = {"y": {"field": "from", "type": "quantitative"}, "y2": {"field": "to"}}


def failed_text(rows: Sequence[StackRow]) -> str:
    """Write a sentence that names rows without a result; empty where there are none."""
    failed = [f"{row.name} ({row.failure})" for row in rows if row.failure is not None]
    if not failed:
        return ""
    return f" Dashed outline, without a result: {listed(failed, at_most=8, between='; ')}."
