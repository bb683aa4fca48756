"""Lines over epochs, steps or ranks, and which steps of a long job are drawn, so that no long or short one is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import dataclass
from stepscope.records.training import Epoch, TrainingRun
from stepscope.report import vega
from stepscope.report.names import shortened
from stepscope.report.shared.runs import DatasetPart, by_dataset
from stepscope.report.vega import Spec
from stepscope.results.diary import JobSteps


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A point: x as drawn, y in base units; low, high None: no interval. efficiency: of a speed-up."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    efficiency: float | None = None


@dataclass(frozen=True, slots=True)
class RunCurve:
    """One run, or one series of runs."""

    name: str
    points: tuple[CurvePoint, ...]


CURVES_HEIGHT = 140

APART = 0.003
"""Share of the axis below which nobody sees two lines apart: less than half of a point of ``CURVES_HEIGHT``."""


def alike_as_one(curves: Sequence[RunCurve]) -> tuple[RunCurve, ...]:
    """Return ``curves`` with those that look alike as one, under their names; one that ends early is like a longer one."""
    ys = [p.y for curve in curves for p in curve.points]
    least = APART * max(max(ys) - min(ys), 0.02 * max(abs(y) for y in ys))
    groups: list[list[RunCurve]] = []
    for curve in sorted(curves, key=lambda curve: -len(curve.points)):
        like = next((group for group in groups if _lies_on(group[0], curve, least)), None)
        if like is None:
            groups.append([curve])
        else:
            like.append(curve)
    groups.sort(key=lambda group: min(map(curves.index, group)))
    return tuple(replace(group[0], name=_one_name([curve.name for curve in group])) for group in groups)


def _lies_on(a: RunCurve, b: RunCurve, least: float) -> bool:
    """Return whether ``b`` lies on ``a``, which is no shorter.

    The last point of a shorter one may be a mean of fewer steps.
    """
    if any(p.low is not None for p in (*a.points, *b.points)):
        return False
    ends_early = len(b.points) < len(a.points)
    pairs = list(zip(a.points, b.points, strict=False))[: -1 if ends_early and len(b.points) > 2 else None]
    return all(p.x == q.x and abs(p.y - q.y) <= least for p, q in pairs)


def _one_name(names: Sequence[str]) -> str:
    if len(names) < 3:
        return " = ".join(names)
    return f"{names[0]} and {len(names) - 1} more, the same"


def highest(curves: Iterable[RunCurve]) -> float:
    """Return the largest value, in base units."""
    return max(p.y for curve in curves for p in curve.points)


def epoch_curves(
    runs: Iterable[TrainingRun], get: Callable[[Epoch], float | None]
) -> Iterator[tuple[DatasetPart, tuple[RunCurve, ...]]]:
    """Yield each data set's runs that have a figure of at least two epochs, with their curves; none of a single run."""
    for part in by_dataset([run for run in runs if sum(vega.drawable(get(e)) for e in run.epochs) > 1], vega.MAX_LINES):
        if len(part.runs) > 1:
            yield (
                part,
                tuple(
                    RunCurve(name, tuple(CurvePoint(e.number, y) for e in run.epochs if vega.drawable(y := get(e))))
                    for run, name in part.named
                ),
            )


def curves_chart(
    title: str,
    curves: Sequence[RunCurve],
    x_axis: str,
    y_axis: str,
    scale: float = 1.0,
    *,
    over: bool = False,
    zero: bool = False,
    dropped: int = 0,
    marked: float | None = None,
) -> Spec:
    """Draw lines over whole numbers.

    over: each line thinner than the one below it, so that lines on each other all show. dropped: first epochs that means
    leave out (shaded). marked: where something changed (a line from top to bottom).
    """
    curves = alike_as_one(curves)
    xs = [p.x for curve in curves for p in curve.points]
    top = highest(curves) * scale * 1.08 if zero else None
    layers = curve_layers(curves, x_axis, y_axis, scale, over=over)
    if dropped:
        shade = {"x": min(xs) - 0.5, "end": min(xs) + dropped - 0.5}
        grey = {"color": vega.RULE, "opacity": 0.4, "clip": True}
        layers.insert(0, vega.layer("rect", [shade], x2="end", **vega.UPRIGHT, **grey))
    if marked is not None:
        layers.insert(0, vega.layer("rule", [{"x": marked}], **vega.UPRIGHT, strokeDash=[3, 2]))
    return vega.chart(
        title,
        *layers,
        width=vega.COLUMN,
        height=CURVES_HEIGHT,
        x=vega.whole_axis("x", x_axis, xs),
        y=vega.number_axis("y", y_axis, low=0.0 if zero else None, top=top),
    )


def curve_layers(
    curves: Sequence[RunCurve],
    x_axis: str,
    y_axis: str,
    scale: float = 1.0,
    *,
    over: bool = False,
    of: Callable[[RunCurve, CurvePoint], str] | None = None,
) -> list[Spec]:
    """Return the lines, points and intervals of ``curves``. of: what a point tells."""
    called = vega.apart([shortened(curve.name, 60) for curve in curves])
    every = max(1, max(len(curve.points) for curve in curves) // 8) if over else 1
    rows, dots, ranged = [], [], []
    for number, (curve, name) in enumerate(zip(curves, called, strict=True)):
        for at, p in enumerate(curve.points):
            place = {"x": float(p.x), "y": p.y * scale, "series": name}
            rows.append(place)
            if (at - number * every // max(1, len(called))) % every == 0 or len(curve.points) == 1:
                sentence = of(curve, p) if of else f"{name}, {x_axis} {p.x:g}: {vega.figure_said(p.y * scale, y_axis)}"
                dots.append({**place, "said": sentence})
            if p.low is not None and p.high is not None:
                ranged.append({"x": float(p.x), "series": name, "low": p.low * scale, "high": p.high * scale})
    hue = vega.by_series(called)
    under = [vega.layer("line", rows, color=hue, strokeWidth=1.3)]
    if over:
        under = [
            vega.layer(
                "line",
                [row for row in rows if row["series"] == name],
                color=hue,
                strokeWidth=1.0 + 0.75 * (len(called) - 1 - n),
                strokeDash=list(vega.DASHES[n % len(vega.DASHES)]),
            )
            for n, name in enumerate(called)
        ]
    return [*under, vega.dots(dots, color=hue, shape=vega.shape_by_series(called)), *vega.whiskers(ranged)]


Numbers = NDArray[np.float64]


def extremes(values: Numbers, buckets: int) -> NDArray[np.int64]:
    """Return the places of the first, the last, and of each bucket's smallest and largest value, in order; of few all.

    buckets: equal runs of steps. Values that are no number are left out.
    """
    places = np.flatnonzero(np.isfinite(values)).astype(np.int64)
    if places.size <= 2 * buckets:
        return places
    finite = values[places]
    starts = np.linspace(0, places.size, buckets, endpoint=False).astype(np.int64)
    bucket = np.repeat(np.arange(buckets), np.diff([*starts, places.size]))
    ordered = np.lexsort((finite, bucket))
    lowest, highest = ordered[starts], ordered[np.append(starts[1:], places.size) - 1]
    kept = np.unique(np.concatenate(([0], lowest, highest, [places.size - 1])))
    return np.asarray(places[kept])


def middles(values: Numbers, buckets: int) -> tuple[list[float], list[float]]:
    """Yield (middle step, median) of each bucket of equal runs of steps; steps count from 1."""
    edges = np.linspace(0, values.size, buckets + 1).astype(np.int64)
    pairs = list(pairwise(edges.tolist()))
    return [(low + 1 + high) / 2 for low, high in pairs], [float(np.nanmedian(values[low:high])) for low, high in pairs]


def bucketed(values: Numbers, buckets: int) -> Numbers:
    """Return the means of runs of steps along the last axis, at most ``buckets`` of them."""
    count = values.shape[-1]
    buckets = min(buckets, count)
    starts = np.linspace(0, count, buckets, endpoint=False).astype(np.int64)
    sizes = np.diff([*starts, count])
    return np.asarray(np.add.reduceat(values, starts, axis=-1) / sizes)


def drawn_steps(steps: JobSteps) -> int:
    """Return where the axis of steps ends: the steps of the rank that made most."""
    return max(diary.first + diary.steps for diary in steps.diaries)
