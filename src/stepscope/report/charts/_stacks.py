"""Bars across, one a run, of parts that add up; names of any length stand at their left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.report.charts._style import (
    COLUMN_INCHES,
    PAGE_INCHES,
    boxes,
    failed_boxes,
    from_zero,
    legend_below,
    legend_below_inches,
    text_at,
    tick_lines,
    title_above,
    title_inches,
    whiskers,
)
from stepscope.report.charts._text import lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    """kinds: what the parts are. whole: end of the axis; None: open. whisker_at: intervals stand after so many parts; None:
    after all.
    """

    key: str
    title: str
    kinds: tuple[str, ...]
    colors: tuple[str, ...]
    rows: tuple[StackRow, ...]
    axis: str
    scale: float
    whole: float | None = None
    whisker_at: int | None = None


def draw_stacks(data: Stacks, axes: Axes) -> None:
    draw_rows(data, axes)
    title_above(axes, data.title, size_stacks(data)[0], edge=True)
    legend_below(axes, data.kinds, size_stacks(data)[0])


def draw_rows(data: Stacks, axes: Axes) -> None:
    """The bars alone, the first row on top."""
    sums = [sum(row.parts) for row in data.rows]
    ends = [max(total, row.high or 0.0) for total, row in zip(sums, data.rows, strict=True)]
    top = (data.whole if data.whole is not None else max(ends, default=0.0)) * data.scale
    for number, (kind, color) in enumerate(zip(data.kinds, data.colors, strict=True)):
        boxes(
            axes,
            [
                (sum(row.parts[:number]) * data.scale, at - 0.34, row.parts[number] * data.scale, 0.68)
                for at, row in enumerate(data.rows)
                if row.parts
            ],
            color=color,
            label=kind,
        )
    lost, ranged = [], []
    for at, (row, end) in enumerate(zip(data.rows, ends, strict=True)):
        if row.failure is not None:
            lost.append((0.0, at - 0.34, 0.16 * top, 0.68))
            text_at(axes, 0.16 * top, at, row.failure, dx=3, va="center")
            continue
        if row.low is not None and row.high is not None:
            ranged.append((float(at), row.low * data.scale, row.high * data.scale))
        if row.text:
            text_at(axes, top if data.whole is not None else end * data.scale, at, row.text, dx=3, va="center")
    failed_boxes(axes, lost)
    whiskers(axes, ranged, across=True, cap=0.3)
    width = size_stacks(data)[0]
    chars = max((len(row.text) for row in data.rows), default=0)
    from_zero(axes, top * (1.02 + 0.055 * chars / (width - 1.6)), which="x")
    if data.whole is not None:
        axes.set_xticks([top * part for part in (0.0, 0.25, 0.5, 0.75, 1.0)])
    wrap = NAME_CHARS if width == COLUMN_INCHES else 2 * NAME_CHARS
    axes.set_yticks(range(len(data.rows)), [lines(row.name, wrap) for row in data.rows])
    axes.set_ylim(len(data.rows) - 0.45, -0.55)
    tick_lines(axes, "x")
    axes.set_xlabel(data.axis)


def size_stacks(data: Stacks) -> tuple[float, float]:
    longest = max((len(row.name) for row in data.rows), default=0)
    width = COLUMN_INCHES if longest <= 2 * NAME_CHARS else PAGE_INCHES
    wrap = NAME_CHARS if width == COLUMN_INCHES else 2 * NAME_CHARS
    height = sum(0.27 if len(row.name) > wrap else 0.19 for row in data.rows)
    extra = legend_below_inches(data.kinds, width) + title_inches(data.title, width, edge=True)
    return width, 0.75 + max(height, 0.5) + extra


def failed_text(rows: Sequence[StackRow]) -> str:
    """A sentence that names rows without a result; empty where there are none."""
    failed = [f"{row.name} ({row.failure})" for row in rows if row.failure is not None]
    if not failed:
        return ""
    more = f" and {len(failed) - 8} more" if len(failed) > 8 else ""
    return f" Hatched, without a result: {'; '.join(failed[:8])}{more}."
