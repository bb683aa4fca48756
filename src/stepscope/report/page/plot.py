"""Charts as plain geometry: data in, coordinates and tick texts out. The template draws them, the script adds life."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stepscope.core.units import format_size
from stepscope.report.page.words import plain

Scale = Literal["linear", "log2", "log10"]
AxisUnit = Literal["plain", "bytes", "percent"]

WIDTH, HEIGHT = 520.0, 300.0
LEFT, RIGHT, TOP, BOTTOM = 62.0, 14.0, 10.0, 44.0
INNER_WIDTH, INNER_HEIGHT = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
SLOTS = 7
"""Colours that everybody tells apart; lines of one chart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One measured point. low, high: interval of y. text: what its tooltip and a screen reader say."""

    x: float
    y: float
    text: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Marks joined in order of x. slot: its colour and dash pattern."""

    name: str
    slot: int
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A faint line that says what a value means: ``ideal``, ``good from 0.8``. points: two or more (x, y)."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """title: with its unit. zero: the axis begins at 0 (linear ones only). whole: only whole numbers are marked."""

    title: str
    scale: Scale = "linear"
    unit: AxisUnit = "plain"
    zero: bool = False
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Lines over x. caption: what is seen, in a sentence that needs no chart."""

    key: str
    title: str
    caption: str
    x: Axis
    y: Axis
    lines: tuple[Line, ...]
    references: tuple[Reference, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    at: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnLine:
    """Paths in the plot's own coordinates: the line, a dot for each mark, and whiskers. points: JSON [x, y, text] lists."""

    name: str
    slot: int
    path: str
    dots: str
    whiskers: str
    points: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnReference:
    """A reference line's path, and where its name stands: at its last point."""

    name: str
    path: str
    x: float
    y: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A chart ready for the template. domain: JSON of both axes' ranges, for zooming."""

    chart: Chart
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lines: tuple[DrawnLine, ...]
    references: tuple[DrawnReference, ...]
    domain: str
    width: float = WIDTH
    height: float = HEIGHT
    left: float = LEFT
    top: float = TOP
    inner_width: float = INNER_WIDTH
    inner_height: float = INNER_HEIGHT


def drawn(chart: Chart) -> Drawn:
    """The geometry of ``chart``. Needs at least one mark."""
    marks = [mark for line in chart.lines for mark in line.marks]
    edges = [point for reference in chart.references for point in reference.points]
    xs = [mark.x for mark in marks] + [x for x, _ in edges]
    ys = [v for m in marks for v in (m.y, m.low, m.high) if v is not None] + [y for _, y in edges]
    x_range = _range(xs, chart.x, margin=0.03)
    y_range = _range(ys, chart.y, margin=0.06)

    def px(x: float) -> float:
        return round(_place(x, x_range, chart.x.scale) * INNER_WIDTH, 1)

    def py(y: float) -> float:
        return round((1 - _place(y, y_range, chart.y.scale)) * INNER_HEIGHT, 1)

    return Drawn(
        chart=chart,
        x_ticks=tuple(
            Tick(at=px(value), text=tick_text(value, chart.x)) for value in ticks(x_range, chart.x, about=6)
        ),
        y_ticks=tuple(
            Tick(at=py(value), text=tick_text(value, chart.y)) for value in ticks(y_range, chart.y, about=5)
        ),
        lines=tuple(
            DrawnLine(
                name=line.name,
                slot=line.slot,
                path=_path([(px(m.x), py(m.y)) for m in line.marks]),
                dots="".join(f"M{px(m.x):g} {py(m.y):g}h0" for m in line.marks),
                whiskers="".join(
                    f"M{px(m.x):g} {py(m.low):g}V{py(m.high):g}"
                    for m in line.marks
                    if m.low is not None and m.high is not None
                ),
                points=json.dumps(
                    [[px(m.x), py(m.y), m.text] for m in line.marks], separators=(",", ":"), ensure_ascii=False
                ),
            )
            for line in chart.lines
        ),
        references=tuple(
            DrawnReference(
                name=reference.name,
                path=_path([(px(x), py(y)) for x, y in reference.points]),
                x=px(reference.points[-1][0]),
                y=py(reference.points[-1][1]),
            )
            for reference in chart.references
        ),
        domain=json.dumps({
            "x": [*x_range, chart.x.scale, chart.x.unit], "y": [*y_range, chart.y.scale, chart.y.unit]
        }),
    )  # fmt: skip


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points) if len(points) > 1 else ""


def _range(values: Sequence[float], axis: Axis, *, margin: float) -> tuple[float, float]:
    """What the axis shows: all values with a margin on its own scale, never of length zero."""
    low, high = min(values), max(values)
    if axis.scale != "linear":
        low, high = math.log(low), math.log(high)
        room = (high - low) * margin if high > low else math.log(2) / 2
        return math.exp(low - room), math.exp(high + room)
    if axis.zero:
        low = min(low, 0.0)
    room = (high - low) * margin if high > low else (abs(high) or 1.0) / 2
    return (low if axis.zero and low == 0.0 else low - room), high + room


def _place(value: float, around: tuple[float, float], scale: Scale) -> float:
    low, high = around
    if scale != "linear":
        value, low, high = math.log(max(value, 1e-300)), math.log(low), math.log(high)
    return (value - low) / (high - low)


def ticks(around: tuple[float, float], axis: Axis, *, about: int) -> tuple[float, ...]:
    """Round values inside the range, about as many as asked for."""
    low, high = around
    if axis.scale == "linear":
        step = _round_step((high - low) / about)
        step = max(1.0, math.ceil(step)) if axis.whole else step
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        return tuple(n * step for n in range(first, last + 1))
    base = 2.0 if axis.scale == "log2" else 10.0
    first = math.ceil(math.log(low, base) - 1e-9)
    last = math.floor(math.log(high, base) + 1e-9)
    powers = [base**n for n in range(first, last + 1)]
    if base == 10.0 and len(powers) < 3:
        more = [m * 10.0**n for n in range(first - 1, last + 1) for m in (1, 2, 5)]
        return tuple(v for v in more if low <= v <= high)
    return tuple(powers[:: max(1, -(-len(powers) // (about + 1)))])


def _round_step(rough: float) -> float:
    """1, 2 or 5 times a power of ten, not much below ``rough``."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(m * power for m in (1.0, 2.0, 5.0, 10.0) if m * power >= rough * 0.7)


def tick_text(value: float, axis: Axis) -> str:
    """``64 KiB``, ``80 %``, ``0.25``."""
    if axis.unit == "bytes":
        return format_size(value)
    if axis.unit == "percent":
        return f"{plain(round(value * 100, 6))} %"
    return plain(round(value, 12))


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A part of a bar. slot: index into ``BarChart.parts``."""

    slot: int
    value: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar. text: its value in words. failure: why there is none; then it is hatched. low, high: interval of its end."""

    label: str
    segments: tuple[Segment, ...]
    text: str
    low: float | None = None
    high: float | None = None
    failure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BarChart:
    """Lying bars from 0. parts: names of the segments in the order of slots; one name: plain bars.

    classes: CSS class of each part's colour.
    """

    key: str
    title: str
    caption: str
    parts: tuple[str, ...]
    classes: tuple[str, ...]
    bars: tuple[Bar, ...]
    left_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnSegment:
    css: str
    x: str
    width: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnBar:
    """Positions in per cent of the bar's cell."""

    bar: Bar
    segments: tuple[DrawnSegment, ...]
    whisker: tuple[str, str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnBars:
    chart: BarChart
    bars: tuple[DrawnBar, ...]


def drawn_bars(chart: BarChart) -> DrawnBars:
    """The bars of one chart on one scale."""
    longest = max(
        [bar.high or 0.0 for bar in chart.bars] + [sum(s.value for s in bar.segments) for bar in chart.bars],
        default=0.0,
    )
    return DrawnBars(chart=chart, bars=tuple(_bar(bar, chart, longest or 1.0) for bar in chart.bars))


def _bar(bar: Bar, chart: BarChart, longest: float) -> DrawnBar:
    at, segments = 0.0, []
    for segment in bar.segments:
        segments.append(
            DrawnSegment(
                css=chart.classes[segment.slot],
                x=_share(at / longest),
                width=_share(segment.value / longest),
                text=segment.text,
            )
        )
        at += segment.value
    whisker = None
    if bar.low is not None and bar.high is not None:
        whisker = (_share(bar.low / longest), _share(bar.high / longest))
    return DrawnBar(bar=bar, segments=tuple(segments), whisker=whisker)


def _share(fraction: float) -> str:
    return f"{fraction * 100:.2f}%"
