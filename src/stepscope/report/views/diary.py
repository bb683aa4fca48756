"""All steps of a profiled job on every rank: how long each took, which were profiled, and what happened between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import ceil, floor, log10

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import dataclass
from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted, listed, plural
from stepscope.records.profile import FIRST, OWN_PROFILER, PROFILED, WINDOW, DiaryEvent, EventKind
from stepscope.report.names import file_part
from stepscope.report.shared.curves import Numbers, drawn_steps, extremes, middles
from stepscope.report.shared.runs import time_unit
from stepscope.report.table import Column, Table, Value, duration, number, percent, tabled, wording
from stepscope.report.vega import PAGE, Spec, by_series, chart, color, layer, log_axis, number_axis, sig, whole_axis
from stepscope.report.views import distinct, drawn
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
_SHADES = {"warm-up": color("k-idle"), "profiled": color("k-forward"), "the job's own profiler": color("k-other")}
_SHADE_OPACITY = {"warm-up": 1.0, "profiled": 0.45, "the job's own profiler": 0.3}


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLane:
    """Events of one kind. name: with their period. marks: (first step, last step, events, ns), of all ranks together."""

    name: str
    kind: EventKind
    marks: tuple[tuple[int, int, int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shade:
    """Steps from ``first`` to ``last`` that are not timed. name: why."""

    name: str
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Diary:
    """One job. first: steps that were not read; steps: of the rank that made most; timed: what figures rest on."""

    key: str
    title: str
    first: int
    steps: int
    timed: int
    ranks: int
    lines: tuple[StepLine, ...]
    lanes: tuple[EventLane, ...]
    shades: tuple[Shade, ...]
    between: tuple[Between, ...]
    set_up_ns: int | None


def prepare(profiled: Sequence[ProfiledJob]) -> tuple[Diary, ...]:
    """Return one chart a job of which more than one step is known."""
    return distinct(_diary(job, job.steps) for job in profiled if job.steps is not None and drawn_steps(job.steps) > 1)


def _diary(job: ProfiledJob, steps: JobSteps) -> Diary:
    between = between_steps(steps)
    return Diary(
        key=file_part(job.name),
        title=job.name,
        first=steps.first,
        steps=drawn_steps(steps),
        timed=steps.steps,
        ranks=steps.ranks,
        lines=_lines(steps),
        lanes=_lanes(steps, between),
        shades=_shades(steps),
        between=between,
        set_up_ns=max((d.header.set_up_ns for d in steps.diaries if d.header.set_up_ns is not None), default=None),
    )


def _lines(steps: JobSteps) -> tuple[StepLine, ...]:
    if steps.ranks > MOST_LINES:
        return _band(steps)
    return tuple(
        _line(f"rank {diary.rank}", diary.net_ns, steps.first, POINTS // steps.ranks) for diary in steps.diaries
    )


def _line(name: str, net: Numbers, first: int, most: int) -> StepLine:
    """Return a line of at most so many points. first: steps before those of ``net``."""
    buckets = most // 3
    kept = extremes(net, buckets)
    few = kept.size == np.isfinite(net).sum()
    return StepLine(
        name=name,
        points=tuple((first + int(at) + 1, float(net[at])) for at in kept),
        median_ns=float(np.nanmedian(net)),
        highest=_highest(net, first),
        middles=() if few else tuple((first + at, ns) for at, ns in zip(*middles(net, buckets), strict=True)),
    )


def _band(steps: JobSteps) -> tuple[StepLine, ...]:
    """Return the band from the fastest to the slowest rank, and the median rank."""
    first = steps.first
    count = steps.all_steps - first
    net = np.stack([diary.net_ns[:count] for diary in steps.diaries])
    low, high = net.min(axis=0), net.max(axis=0)
    kept = np.unique(np.concatenate([extremes(low, POINTS // 8), extremes(high, POINTS // 8)]))
    return (
        StepLine(
            name="fastest to slowest rank",
            points=tuple((first + int(at) + 1, float(low[at]), float(high[at])) for at in kept),
            median_ns=float(np.median(high)),
            highest=_highest(high, first),
            band=True,
        ),
        _line("median rank", np.median(net, axis=0), first, POINTS // 2),
    )


def _highest(net: Numbers, first: int) -> tuple[int, float]:
    at = int(np.nanargmax(net))
    return first + at + 1, float(net[at])


def _lanes(steps: JobSteps, between: Sequence[Between]) -> tuple[EventLane, ...]:
    """Return the kinds that happened, the costliest lowest; those of the warm-up alone come last."""
    by_kind: dict[EventKind, list[DiaryEvent]] = defaultdict(list)
    for diary in steps.diaries:
        for event in diary.events:
            if event.kind in EVENTS:
                by_kind[event.kind].append(event)
    between_by_kind = {event_kind.kind: event_kind for event_kind in between}
    order = [*(kind for kind in between_by_kind if kind in by_kind), *(kind for kind in EVENTS if kind in by_kind)]
    total = drawn_steps(steps)
    return tuple(
        EventLane(name=_lane_name(kind, between_by_kind.get(kind)), kind=kind, marks=_marks(by_kind[kind], total))
        for kind in dict.fromkeys(order)
    )


def _lane_name(kind: EventKind, between: Between | None) -> str:
    name = EVENTS[kind][0]
    return name if between is None or between.period is None else f"{name} every {between.period:,} steps"


def _marks(events: Iterable[DiaryEvent], steps: int) -> tuple[tuple[int, int, int, float], ...]:
    """Join events of a stretch of steps too short to be told apart to one mark."""
    stretch = max(1, ceil(steps / MARKS))
    together: dict[int, list[DiaryEvent]] = defaultdict(list)
    for event in events:
        together[(event.step - 1) // stretch].append(event)
    return tuple(
        (
            min(e.step for e in stretch_events),
            max(e.step for e in stretch_events),
            len(stretch_events),
            float(sum(e.ns for e in stretch_events)),
        )
        for _, stretch_events in sorted(together.items())
    )


def _shades(steps: JobSteps) -> tuple[Shade, ...]:
    total = drawn_steps(steps) - steps.first

    def flagged(mask: int) -> NDArray[np.bool_]:
        hits = np.zeros(total, dtype=bool)
        for diary in steps.diaries:
            hits[: diary.steps] |= (diary.flags & mask) != 0
        return hits

    warm_up = max(steps.warm_up, *(int((diary.flags[:1] & FIRST).any()) for diary in steps.diaries))
    warm = [Shade(name="warm-up", first=1, last=warm_up)] if warm_up > steps.first else []
    marked = [
        Shade(name=name, first=steps.first + first, last=steps.first + last)
        for name, mask in (("profiled", PROFILED | WINDOW), ("the job's own profiler", OWN_PROFILER))
        for first, last in _runs(flagged(mask))
    ]
    return (*warm, *marked[:MARKS])


def _runs(flags: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return (first, last) step of each stretch of flagged steps."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8)))
    return [(int(first) + 1, int(last)) for first, last in edges.reshape(-1, 2)]


def step_chart(data: Diary) -> Spec:
    """Draw lines of step times, shades of what is not timed behind them, a row of marks for each kind of event above."""
    values = [ns for line in data.lines for point in line.points for ns in point[1:]]
    highest, lowest = max(values), min(value for value in values if value > 0)
    scale, unit = time_unit(highest)
    far = highest > FAR * max(line.median_ns for line in data.lines)
    height = HIGH + LANE * len(data.lanes) + (2 if data.lanes else 0)
    names = [*(line.name for line in data.lines), *(lane.name for lane in data.lanes)]
    colors = [*_LINES[: len(data.lines)], *(EVENTS[lane.kind][1] for lane in data.lanes)]
    for name in dict.fromkeys(shade.name for shade in data.shades):
        names.append(name)
        colors.append(_SHADES[name])
    hue = by_series(names, colors, width=PAGE)
    axis = f"step time ({unit})"
    return chart(
        data.title,
        *_shaded(data.shades, hue),
        *(
            drawn
            for at, line in enumerate(data.lines)
            for drawn in _drawn(line, hue, scale, under=len(data.lines) - 1 - at)
        ),
        *(_lane(lane, hue, y=4 + LANE * (len(data.lanes) - 1 - at)) for at, lane in enumerate(data.lanes)),
        width=PAGE,
        height=height,
        x=whole_axis("x", "step", [data.first + 1, data.steps]),
        y=_log(axis, lowest * scale, highest * scale, height) if far else _linear(axis, highest * scale, height),
    )


def _linear(title: str, top: float, height: int) -> Spec:
    """Return an axis from 0, with ``HIGH`` points for what is measured and the rest for events."""
    raw = top / 5
    size = 10 ** floor(log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw)
    ticks = [sig(step * n) for n in range(int(top * 1.02 / step) + 1)]
    return number_axis("y", title, low=0.0, top=1.04 * top * height / HIGH, values=ticks)


def _log(title: str, low: float, high: float, height: int) -> Spec:
    axis = log_axis("y", title, [low, high])
    bottom, top = axis["scale"]["domain"]
    axis["scale"]["domain"] = [bottom, sig(bottom * (top / bottom) ** (height / HIGH))]
    return axis


def _shaded(shades: Sequence[Shade], hue: Spec) -> list[Spec]:
    """Return a layer for each kind, for each has its own strength; one step of a million is as wide as its edge."""
    layers = []
    for name in dict.fromkeys(shade.name for shade in shades):
        rects = [
            {"x": shade.first - 0.5, "end": shade.last + 0.5, "series": name, "said": _shade_said(shade)}
            for shade in shades
            if shade.name == name
        ]
        place = {"x2": {"field": "end"}, "y": {"value": 0}, "y2": {"value": "height"}, "color": hue, "stroke": hue}
        how = {"opacity": _SHADE_OPACITY[name], "strokeWidth": 0.8}
        layers.append(layer("rect", rects, place, **how))
    return layers


def _shade_said(shade: Shade) -> str:
    steps = f"step {shade.first:,}" if shade.first == shade.last else f"steps {shade.first:,} to {shade.last:,}"
    return f"{shade.name}: {steps}"


def _drawn(line: StepLine, hue: Spec, scale: float, *, under: int) -> list[Spec]:
    """Draw a line. under: lines above this one, which is wider than they, so that equal ones all show."""
    description = {"said": _line_said(line)}
    if line.band:
        values: list[dict[str, float | str]] = [
            {"x": step, "y": sig(low * scale), "high": sig(high * scale), "series": line.name}
            for step, low, high in line.points
        ]
        values[0] |= description
        return [layer("area", values, {"y2": {"field": "high"}, "color": hue}, opacity=0.45)]
    wide = 0.7 + 0.7 * under

    def points(of: Iterable[tuple[float, ...]]) -> list[dict[str, float | str]]:
        return [{"x": sig(step), "y": sig(ns * scale), "series": line.name} for step, ns in of]

    every = points(line.points)
    if not line.middles:
        every[0] |= description
        return [layer("line", every, {"color": hue}, strokeWidth=wide, strokeJoin="round")]
    middle = points(line.middles)
    middle[0] |= description
    return [
        layer("line", every, {"color": hue}, strokeWidth=0.7, strokeJoin="round", opacity=0.4),
        layer("line", middle, {"color": hue}, strokeWidth=wide + 0.3, strokeJoin="round"),
    ]


def _line_said(line: StepLine) -> str:
    step, ns = line.highest
    return f"{line.name}: median {format_duration(line.median_ns)}, longest {format_duration(ns)} in step {step:,}"


def _lane(lane: EventLane, hue: Spec, *, y: int) -> Spec:
    name = EVENTS[lane.kind][0]
    values = []
    for first, last, count, ns in lane.marks:
        where = f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"
        times = "" if count == 1 else f"{counted(count, 'time')}, "
        values.append(
            {"x": (first + last) / 2, "series": lane.name, "said": f"{where}: {name}, {times}{format_duration(ns)}"}
        )
    return layer(
        "tick", values, {"y": {"value": y}, "color": hue}, orient="vertical", size=LANE - 2, thickness=1.6, opacity=1
    )


def caption(data: Diary) -> str:
    """Say what is seen, in sentences."""
    first = data.lines[0]
    ranks = "" if data.ranks == 1 else f" on {counted(data.ranks, 'rank')}"
    steps = f"steps {data.first + 1:,} to {data.steps:,}" if data.first else f"all {data.steps:,} steps"
    sentences = [
        f"The time of {steps}{ranks}, without what happens between steps; {data.timed:,} of them are timed."
        f" {_line_said(first).capitalize()}."
    ]
    shades = [_shade_said(shade) for shade in data.shades]
    if shades:
        sentences.append(f"Shaded, not timed: {listed(shades, at_most=4, between='; ')}.")
    events = [
        f"{EVENTS[between.kind][0]} {_how_often(between)}, {format_percent(between.share.value)} of the wall time"
        for between in data.between
        if between.kind in EVENTS
    ]
    if events:
        sentences.append(f"Above: {'; '.join(events)}.")
    if data.set_up_ns is not None:
        sentences.append(f"Before the first step the process took {format_duration(data.set_up_ns)}.")
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
        Column("job", "job", lambda row: row[0].name, role="group"),
        Column("event", "event", lambda row: EVENT_WORDS[row[2].kind], role="lead"),
        Column("what", "call", lambda row: row[2].what or None),
        Column("count", "times", lambda row: row[2].count, number),
        Column("period_steps", "every", lambda row: _period(row[2])),
        Column("mean", "each", lambda row: row[2].mean_ns, duration),
        Column("wall_share", "of wall time", lambda row: row[2].share.value, percent),
        Column("inside", "where", lambda row: wording("in steps" if row[2].inside else "between steps", row[2].inside)),
        Column("ranks", "ranks", lambda row: wording(_ranks(row[1], row[2]), " ".join(map(str, row[2].ranks)))),
        footnotes=("times: on one rank; of the wall time from the end of warm-up on, of the rank that they cost most",),
    )


def _period(between: Between) -> Value:
    return wording(None if between.period is None else f"{between.period:,} steps", between.period)


def _ranks(steps: JobSteps, between: Between) -> str:
    if len(between.ranks) == steps.ranks and steps.ranks > 1:
        return f"all {steps.ranks}"
    return listed(list(map(str, between.ranks)), at_most=8)


VIEWS = (drawn("diary", "All steps", ("profiled",), prepare, step_chart, caption, table=build),)
