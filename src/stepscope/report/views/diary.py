"""All steps of a profiled job on every rank: how long each took, which were profiled, and what happened between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import ceil, floor, log10
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import dataclass
from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted, grouped, listed, plural
from stepscope.records.profile import FIRST, OWN_PROFILER, PROFILED, WINDOW, DiaryEvent, EventKind
from stepscope.report.names import file_part
from stepscope.report.shared.curves import Numbers, drawn_steps, extremes, middles
from stepscope.report.shared.runs import time_unit
from stepscope.report.table import (
    Column,
    Table,
    Value,
    duration,
    group_column,
    lead_column,
    number,
    percent,
    tabled,
    wording,
)
from stepscope.report.vega import (
    PAGE,
    UPRIGHT,
    Chart,
    Spec,
    by_series,
    chart,
    color,
    layer,
    log_axis,
    number_axis,
    sig,
    telling,
    whole_axis,
)
from stepscope.report.views import View
from stepscope.results.diary import EVENT_WORDS, Between, JobSteps, between_steps
from stepscope.results.profiled_job import ProfiledJob

POINTS = 2_000
"""Points of all lines together."""

MOST_LINES = 4
"""Ranks with a line of their own; more are a band from the fastest to the slowest."""

MARKS = 120
"""Marks of one kind of event: those that lie closer together are one mark."""

HIGH, LANE = 130, 9
"""Heights in points: of the step times, and of each row of events above them."""

FAR = 5.0
"""Highest / median step from which on times are drawn on a logarithmic axis."""

_COLORS: dict[EventKind, str] = {
    "evaluation": "k-late",
    "inference": "k-hidden",
    "checkpoint": "c4",
    "loader_start": "k-exposed",
    "garbage_collection": "k-wait",
    "compilation": "c6",
}
EVENTS = {kind: (EVENT_WORDS[kind], color(name)) for kind, name in _COLORS.items()}
"""Kinds that take time of their own -> name and colour, from the lowest row up."""

_LINES = tuple(color(name) for name in ("c0", "c1", "c2", "c5"))
_SHADES = {
    "warm-up": (color("k-idle"), 1.0),
    "profiled": (color("k-forward"), 0.45),
    "the job's own profiler": (color("k-other"), 0.3),
}
"""Why steps are not timed -> colour and opacity."""


@dataclass(frozen=True, slots=True)
class StepLine:
    """Step times of a rank, or of all of them (``band``: from the fastest to the slowest). points: (step, ns), of a band
    (step, ns, ns). middles: medians of runs of steps, where points are the extremes of more steps than can be drawn.
    """

    name: str
    points: tuple[tuple[float, ...], ...]
    median_ns: float
    highest: tuple[int, float]
    middles: tuple[tuple[float, float], ...] = ()
    band: bool = False

    @property
    def sentence(self) -> str:
        step, ns = self.highest
        median = format_duration(self.median_ns)
        return f"{self.name}: median {median}, longest {format_duration(ns)} in step {step:,}"


Shade = tuple[str, int, int]
"""Why steps are not timed, the first and the last of them."""

Mark = tuple[int, int, int, float]
"""First step, last step, events, ns, of all ranks together."""


def diary_charts(profiled: Sequence[ProfiledJob]) -> Iterator[Chart]:
    """Yield one chart a job of which more than one step is known."""
    for job in profiled:
        if (steps := job.steps) is None or drawn_steps(steps) < 2:
            continue
        between, shades, lines = between_steps(steps), _untimed_shades(steps), _step_lines(steps)
        spec = _steps_chart(job.name, steps, lines, shades, between)
        yield Chart(file_part(job.name), job.name, _diary_caption(steps, lines, shades, between), spec)


def _step_lines(steps: JobSteps) -> tuple[StepLine, ...]:
    if steps.ranks > MOST_LINES:
        return _step_band(steps)
    return tuple(
        _step_line(f"rank {diary.rank}", diary.net_ns, steps.first, POINTS // steps.ranks) for diary in steps.diaries
    )


def _step_line(name: str, net: Numbers, first: int, most: int) -> StepLine:
    """Return a line of at most so many points. first: steps before those of ``net``."""
    buckets = most // 3
    kept = extremes(net, buckets)
    few = kept.size == np.isfinite(net).sum()
    return StepLine(
        name,
        tuple((first + float(at) + 1, float(net[at])) for at in kept),
        float(np.nanmedian(net)),
        _highest_step(net, first),
        () if few else tuple((first + at, ns) for at, ns in zip(*middles(net, buckets), strict=True)),
    )


def _step_band(steps: JobSteps) -> tuple[StepLine, ...]:
    """Return the band from the fastest to the slowest rank, and the median rank."""
    first = steps.first
    count = steps.all_steps - first
    net = np.stack([diary.net_ns[:count] for diary in steps.diaries])
    low, high = net.min(axis=0), net.max(axis=0)
    kept = np.unique(np.concatenate([extremes(low, POINTS // 8), extremes(high, POINTS // 8)]))
    points = tuple((first + int(at) + 1, float(low[at]), float(high[at])) for at in kept)
    return (
        StepLine("fastest to slowest rank", points, float(np.median(high)), _highest_step(high, first), band=True),
        _step_line("median rank", np.median(net, axis=0), first, POINTS // 2),
    )


def _highest_step(net: Numbers, first: int) -> tuple[int, float]:
    at = int(np.nanargmax(net))
    return first + at + 1, float(net[at])


def _event_lanes(steps: JobSteps, between: Sequence[Between]) -> dict[EventKind, tuple[str, list[Mark]]]:
    """Return kind -> name with its period, and marks; the costliest first, those of the warm-up alone last."""
    events = [event for diary in steps.diaries for event in diary.events if event.kind in EVENTS]
    by_kind = grouped(events, lambda event: event.kind)
    periods = {event_kind.kind: event_kind.period for event_kind in between}
    order = [kind for kind in dict.fromkeys((*periods, *EVENTS)) if kind in by_kind]
    return {
        kind: (_lane_name(kind, periods.get(kind)), _event_marks(by_kind[kind], drawn_steps(steps))) for kind in order
    }


def _lane_name(kind: EventKind, period: int | None) -> str:
    return EVENTS[kind][0] + ("" if period is None else f" every {period:,} steps")


def _event_marks(events: Iterable[DiaryEvent], steps: int) -> list[Mark]:
    """Join events of a stretch of steps too short to be told apart to one mark."""
    stretch = max(1, ceil(steps / MARKS))
    together = grouped(sorted(events, key=lambda event: event.step), lambda event: (event.step - 1) // stretch)
    return [
        (joined[0].step, joined[-1].step, len(joined), float(sum(event.ns for event in joined)))
        for joined in together.values()
    ]


def _untimed_shades(steps: JobSteps) -> list[Shade]:
    total = drawn_steps(steps) - steps.first

    def flagged(mask: int) -> NDArray[np.bool_]:
        hits = np.zeros(total, dtype=bool)
        for diary in steps.diaries:
            hits[: diary.steps] |= (diary.flags & mask) != 0
        return hits

    warm_up = max(steps.warm_up, *(int((diary.flags[:1] & FIRST).any()) for diary in steps.diaries))
    marked = [
        (name, steps.first + first, steps.first + last)
        for name, mask in (("profiled", PROFILED | WINDOW), ("the job's own profiler", OWN_PROFILER))
        for first, last in _flagged_stretches(flagged(mask))
    ]
    return [*([("warm-up", 1, warm_up)] if warm_up > steps.first else []), *marked[:MARKS]]


def _flagged_stretches(flags: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return (first, last) step of each stretch of flagged steps."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8)))
    return [(int(first) + 1, int(last)) for first, last in edges.reshape(-1, 2)]


def _steps_chart(
    title: str, steps: JobSteps, lines: Sequence[StepLine], shades: Sequence[Shade], between: Sequence[Between]
) -> Spec:
    """Draw lines of step times, shades of what is not timed behind them, a row of marks for each kind of event above."""
    values = [ns for line in lines for point in line.points for ns in point[1:]]
    highest, lowest = max(values), min(value for value in values if value > 0)
    scale, unit = time_unit(highest)
    far = highest > FAR * max(line.median_ns for line in lines)
    lanes = _event_lanes(steps, between)
    height = HIGH + LANE * len(lanes) + (2 if lanes else 0)
    reasons = grouped(shades, lambda shade: shade[0])
    hue = by_series(
        [*(line.name for line in lines), *(name for name, _ in lanes.values()), *reasons],
        [*_LINES[: len(lines)], *(EVENTS[kind][1] for kind in lanes), *(_SHADES[name][0] for name in reasons)],
        width=PAGE,
    )
    axis = f"step time ({unit})"
    return chart(
        title,
        *(_shade_layer(name, of, hue) for name, of in reasons.items()),
        *(
            drawn
            for at, line in enumerate(lines)
            for drawn in _line_layers(line, hue, scale, under=len(lines) - 1 - at)
        ),
        *(
            _lane_layer(kind, name, marks, hue, y=4 + LANE * (len(lanes) - 1 - at))
            for at, (kind, (name, marks)) in enumerate(lanes.items())
        ),
        width=PAGE,
        height=height,
        x=whole_axis("x", "step", [steps.first + 1, drawn_steps(steps)]),
        y=_log_axis(axis, lowest * scale, highest * scale, height)
        if far
        else _linear_axis(axis, highest * scale, height),
    )


def _linear_axis(title: str, top: float, height: int) -> Spec:
    """Return an axis from 0, with ``HIGH`` points for what is measured and the rest for events."""
    raw = top / 5
    size = 10 ** floor(log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw)
    ticks = [sig(step * n) for n in range(int(top * 1.02 / step) + 1)]
    return number_axis("y", title, low=0.0, top=1.04 * top * height / HIGH, values=ticks)


def _log_axis(title: str, low: float, high: float, height: int) -> Spec:
    axis = log_axis("y", title, [low, high])
    bottom, top = axis["scale"]["domain"]
    axis["scale"]["domain"] = [bottom, sig(bottom * (top / bottom) ** (height / HIGH))]
    return axis


def _shade_layer(name: str, shades: Iterable[Shade], hue: Spec) -> Spec:
    """Return the layer of a kind, which has its own strength; one step of a million is as wide as its edge."""
    rects = [
        {"x": first - 0.5, "end": last + 0.5, "series": name, "said": f"{name}: {_steps_text(first, last)}"}
        for _, first, last in shades
    ]
    return layer("rect", rects, x2="end", **UPRIGHT, color=hue, stroke=hue, opacity=_SHADES[name][1], strokeWidth=0.8)


def _steps_text(first: int, last: int) -> str:
    return f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"


def _line_layers(line: StepLine, hue: Spec, scale: float, *, under: int) -> list[Spec]:
    """Draw a line. under: lines above this one, which is wider than they, so that equal ones all show."""

    name = {"series": line.name}

    def points(of: Iterable[tuple[float, ...]]) -> list[dict[str, Any]]:
        return [
            dict(zip(("x", "y", "high"), (at, *(ns * scale for ns in more)), strict=False)) | name for at, *more in of
        ]

    every, wide = points(line.points), 0.7 + 0.7 * under
    if line.band:
        return [layer("area", telling(every, line.sentence), y2="high", color=hue, opacity=0.45)]
    if not line.middles:
        return [layer("line", telling(every, line.sentence), color=hue, strokeWidth=wide, strokeJoin="round")]
    middle = telling(points(line.middles), line.sentence)
    return [
        layer("line", every, color=hue, strokeWidth=0.7, strokeJoin="round", opacity=0.4),
        layer("line", middle, color=hue, strokeWidth=wide + 0.3, strokeJoin="round"),
    ]


def _lane_layer(kind: EventKind, name: str, marks: Iterable[Mark], hue: Spec, *, y: int) -> Spec:
    """Return the layer of one kind of event: a mark for each, with what it took."""
    values = []
    for first, last, count, ns in marks:
        times = "" if count == 1 else f"{counted(count, 'time')}, "
        sentence = f"{_steps_text(first, last)}: {EVENTS[kind][0]}, {times}{format_duration(ns)}"
        values.append({"x": (first + last) / 2, "series": name, "said": sentence})
    return layer("tick", values, y=y, color=hue, orient="vertical", size=LANE - 2, thickness=1.6, opacity=1)


def _diary_caption(
    steps: JobSteps, lines: Sequence[StepLine], shades: Sequence[Shade], kinds: Sequence[Between]
) -> str:
    """Say what the lines, shades and marks are."""
    ranks = "" if steps.ranks == 1 else f" on {counted(steps.ranks, 'rank')}"
    last = drawn_steps(steps)
    which = f"steps {steps.first + 1:,} to {last:,}" if steps.first else f"all {last:,} steps"
    sentences = [
        f"The time of {which}{ranks}, without what happens between steps; {steps.steps:,} of them are timed."
        f" {lines[0].sentence.capitalize()}."
    ]
    if shades:
        spans = [f"{name}: {_steps_text(first, end)}" for name, first, end in shades]
        sentences.append(f"Shaded, not timed: {listed(spans, at_most=4, between='; ')}.")
    events = [
        f"{EVENTS[between.kind][0]} {_how_often(between)}, {format_percent(between.share.value)} of the wall time"
        for between in kinds
        if between.kind in EVENTS
    ]
    if events:
        sentences.append(f"Above: {'; '.join(events)}.")
    set_up_ns = max((d.header.set_up_ns for d in steps.diaries if d.header.set_up_ns is not None), default=None)
    if set_up_ns is not None:
        sentences.append(f"Before the first step the process took {format_duration(set_up_ns)}.")
    return " ".join(sentences)


def _how_often(between: Between) -> str:
    every = "" if between.period is None else f" every {between.period:,} steps,"
    return f"{between.count:,} {plural(between.count, 'time')},{every} {format_duration(between.mean_ns)} each"


def build(profiled: Sequence[ProfiledJob]) -> Table:
    """Return the table: one row a kind of event."""
    rows = [(job, job.steps, event) for job in profiled if job.steps is not None for event in between_steps(job.steps)]
    return tabled(
        "events",
        "Between steps and within them",
        rows,
        group_column("job", "job", "0.name"),
        lead_column("event", "event", lambda row: EVENT_WORDS[row[2].kind]),
        Column("what", "call", lambda row: row[2].what or None),
        Column("count", "times", "2.count", number),
        Column("period_steps", "every", lambda row: _period_value(row[2])),
        Column("mean", "each", "2.mean_ns", duration),
        Column("wall_share", "of wall time", "2.share.value", percent),
        Column("inside", "where", lambda row: wording("in steps" if row[2].inside else "between steps", row[2].inside)),
        Column(
            "ranks", "ranks", lambda row: wording(_event_ranks_text(row[1], row[2]), " ".join(map(str, row[2].ranks)))
        ),
        footnotes=("times: on one rank; of the wall time from the end of warm-up on, of the rank that they cost most",),
    )


def _period_value(between: Between) -> Value:
    return wording(None if between.period is None else f"{between.period:,} steps", between.period)


def _event_ranks_text(steps: JobSteps, between: Between) -> str:
    if len(between.ranks) == steps.ranks and steps.ranks > 1:
        return f"all {steps.ranks}"
    return listed(list(map(str, between.ranks)), at_most=8)


VIEWS = (View("diary", "All steps", table=build, charts=diary_charts),)
