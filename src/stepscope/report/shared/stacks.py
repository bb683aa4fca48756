"""Bars across, one a run, of parts that add up; names of any length stand at their left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from stepscope.core.dataclass import dataclass
from stepscope.core.words import listed
from stepscope.report import vega
from stepscope.report.names import lines
from stepscope.report.vega import Spec, sig

MAX_ROWS = 20
NAME_CHARS = 24
"""Characters of a name's line in a chart of one column."""


@dataclass(frozen=True, slots=True)
class StackRow:
    """One bar. parts: base units, in the order of kinds. low, high: interval of their sum, or where it stands.

    text: stands at its end. failure: why it has no parts.
    """

    name: str
    parts: tuple[float, ...] = ()
    text: str = ""
    failure: str | None = None
    low: float | None = None
    high: float | None = None


def by_length(rows: Iterable[StackRow]) -> list[StackRow]:
    """Return the rows with a result, the longest bar first."""
    return sorted((row for row in rows if row.failure is None), key=lambda row: -sum(row.parts))


def stacks_chart(
    title: str,
    rows: Sequence[StackRow],
    axis: str,
    scale: float,
    kinds: Sequence[str],
    colors: Sequence[str] = vega.COLORS[:1],
    *,
    whole: float | None = None,
) -> Spec:
    """Return the bars, the first row on top; what failed has a dashed outline and its reason.

    scale: base units -> axis. kinds: what the parts are. whole: end of the axis; None: open.
    """
    longest = max((len(row.name) for row in rows), default=0)
    width, wrap = (vega.COLUMN, NAME_CHARS) if longest <= 2 * NAME_CHARS else (vega.PAGE, 2 * NAME_CHARS)
    names = vega.apart([lines(row.name, wrap) for row in rows])
    ends = [max(sum(row.parts), row.high or 0.0) for row in rows]
    top = (max(ends, default=0.0) if whole is None else whole) * scale or 1.0
    bars, texts, lost, ranged = [], [], [], []
    for row, name, end in zip(rows, names, ends, strict=True):
        if row.failure is not None:
            lost.append({"row": name, "from": 0, "to": 0.14 * top, "said": f"{row.name}: {row.failure}"})
            texts.append({"row": name, "from": 0.14 * top, "text": row.failure})
            continue
        at = 0.0
        for kind, part in zip(kinds, row.parts, strict=True):
            if part > 0:
                sentence = f"{row.name}: {kind} {vega.figure_said(part * scale, axis)}"
                ends_ = {"from": at * scale, "to": (at + part) * scale}
                bars.append({"row": name, "series": kind, **ends_, "said": sentence})
            at += part
        if row.low is not None and row.high is not None:
            ranged.append({"row": name, "low": row.low * scale, "high": row.high * scale})
        if row.text:
            texts.append({"row": name, "from": end * scale if whole is None else top, "text": row.text})
    chars = max((len(row.text or row.failure or "") for row in rows), default=0)
    room = 1.02 + 0.055 * chars / (width / 72 - 1.6)
    quarters = {} if whole is None else {"values": [sig(top * part) for part in (0.0, 0.25, 0.5, 0.75, 1.0)]}
    hue = vega.by_series(kinds, colors, width=int(width - vega.width_of(names)))
    return vega.chart(
        title,
        vega.layer("bar", bars, x="from", x2="to", color=hue),
        *([vega.layer("bar", lost, x="from", x2="to", **vega.FAILED)] if lost else []),
        *vega.whiskers(ranged, across=True),
        *vega.words(texts, align="left", dx=3),
        width=width,
        height=max(36, sum(22 if "\n" in name else 14 for name in names)),
        x=vega.number_axis("from", axis, low=0.0, top=top * room, **quarters),
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
            {"x": x, "from": low * scale, "to": high * scale, "series": name}
            for x, low, high in zip(at, below, above, strict=True)
        ]
        points[0]["said"] = sentence
        areas.append(points)
        below = above
    return areas


def failed_text(rows: Iterable[StackRow]) -> str:
    """Write a sentence that names rows without a result; empty where there are none."""
    failed = [f"{row.name} ({row.failure})" for row in rows if row.failure is not None]
    return f" Dashed outline, without a result: {listed(failed, at_most=8, between='; ')}." if failed else ""
