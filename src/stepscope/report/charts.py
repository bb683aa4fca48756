"""All charts of some records: which there are, and as files, with a page of their captions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from stepscope.core.dataclass import record
from stepscope.core.errors import Unavailable, UsageError
from stepscope.core.pool import side_by_side
from stepscope.core.words import counted, unknown
from stepscope.predict.step.alternatives import KNEE
from stepscope.report.names import clean
from stepscope.report.render import picture
from stepscope.report.render.files import plain_text
from stepscope.report.vega import Chart, Spec, resolved
from stepscope.report.views import views
from stepscope.report.views.predicted_step import ScaleCurve, ScalePoint
from stepscope.results.dry_job import DryJob, efficiency, speed, unit_of
from stepscope.results.history import history
from stepscope.store.writer import write_bytes

if TYPE_CHECKING:
    from stepscope.records.calibration import Calibration
    from stepscope.records.comm import CommRow
    from stepscope.results.evidence import Evidence

Pictures = tuple[bytes, ...] | Unavailable

CAPTIONS = "charts.md"

DIED = "the process that drew was ended, and so was a second one: memory has run out, or something ends processes here"

MAX_CHARTS = 36
"""Charts of one report: nobody looks at more."""

MANY_RUNS, FEW_CHARTS = 100, 14
"""From so many runs on, so many charts: the first of each chart say most."""


@record
class Drawing:
    """Charts to show, those beyond the limit, and their pictures as they become ready: the SVG with the page's colours
    first, then a file for each of ``formats``; or why there is none.
    """

    charts: tuple[Chart, ...]
    left_out: tuple[Chart, ...]
    formats: tuple[picture.Format, ...]
    pictures: Callable[[], tuple[Pictures, ...]]

    @property
    def missing(self) -> dict[str, str]:
        """Title of each chart that could not be drawn, and why."""
        drawn = zip(self.charts, self.pictures(), strict=True)
        return {chart.full_title: images.reason for chart, images in drawn if isinstance(images, Unavailable)}

    def for_page(self) -> tuple[tuple[Chart, str], ...]:
        """Return each chart with its SVG, whose colours the page gives; names inside one SVG are its own."""
        return tuple(
            (
                chart,
                f'<p class="aside">Not drawn: {escape(images.reason)}</p>'
                if isinstance(images, Unavailable)
                else picture.inside(images[0].decode(), f"f{number}", chart.full_title),
            )
            for number, (chart, images) in enumerate(zip(self.charts, self.pictures(), strict=True))
        )


def records_of(evidence: Evidence, *, drop_epochs: int = 1) -> dict[str, Any]:
    """Return what charts need and want, by the names that they use.

    Of runs over time all but their history draw the newest.
    """
    past = history(evidence)
    older = set() if past is None else {run.path for run in past.runs[:-1]}
    runs = tuple(run for run in evidence.runs if run.source not in older)
    kept = {run.run_id for run in runs}
    dry = tuple(job for job in evidence.dry if job.worlds)
    return {
        "rows": evidence.comm or None,
        "calibration": evidence.calibration,
        "runs": runs or None,
        "scaling": tuple(row for row in evidence.scaling if row.run_id in kept) or None,
        "cells": tuple(cell for cell in evidence.cells if cell.run.run_id in kept) or None,
        "traces": evidence.traces or None,
        "profiled": evidence.profiled or None,
        "memory": evidence.memory or None,
        "dry": dry or None,
        "scale_curves": tuple(map(curve_of_dry_run, dry)) or None,
        "history": past,
        "drop_epochs": drop_epochs,
    }


def curve_of_dry_run(job: DryJob) -> ScaleCurve:
    """Return the speed over GPUs with its interval."""
    steps = list(job.steps.values())
    points = [
        ScalePoint(
            gpus=step.ranks,
            value=speed(step),
            low=speed(step) * step.step_ns / step.high_ns,
            high=speed(step) * step.step_ns / step.low_ns,
        )
        for step in steps
    ]
    knee = max(step.ranks for step in steps if efficiency(step, steps[0]) >= KNEE)
    return ScaleCurve(title=job.name, unit=f"{unit_of(steps)}/s", points=tuple(points), knee=knee)


def charts_of(records: Mapping[str, Any], limit: int | None = None) -> tuple[tuple[Chart, ...], tuple[Chart, ...]]:
    """Return (to be drawn, left out): charts in the order of their names; of too many every view's first ones are kept."""
    made: dict[tuple[int, int], Chart] = {}
    stems = Counter[str]()
    for number, view in enumerate(views().values()):
        for place, chart in enumerate(view.drawn(records)):
            stem = (view.stem or f"{view.key}-KEY").replace("KEY", chart.key)
            stems[stem] += 1
            if stems[stem] > 1:
                stem += f"-{stems[stem]}"
                stems[stem] += 1
            made[place, number] = replace(chart, view=view.key, about=view.title, stem=stem)
    kept = set(sorted(made)[:limit])
    return tuple(made[at] for at in made if at in kept), tuple(made[at] for at in made if at not in kept)


def begin(
    records: Mapping[str, Any],
    formats: Sequence[str] = ("png",),
    *,
    limit: int | None = -1,
    executor: Executor | None = None,
) -> Drawing:
    """Describe what ``records`` allow and begin to draw it, in the processes of ``executor`` where one is given.

    records: as of :func:`records_of`; None or absent: there is none. formats: png, svg, pdf; none: the page alone.
    limit: most charts, of every chart the first ones; None: all; -1: as many as a report should have. Raises
    UsageError for an unknown format.
    """
    for name in formats:
        if name not in picture.FORMATS:
            raise UsageError(unknown("chart format", name, picture.FORMATS))
    if limit == -1:
        limit = MAX_CHARTS if len(records.get("runs") or ()) < MANY_RUNS else FEW_CHARTS
    wanted = tuple(name for name in picture.FORMATS if name in formats)
    drawn, left_out = charts_of(records, limit)
    work = [(json.dumps(f.spec), clean(f.full_title, 400), clean(f.caption, 4000), wanted) for f in drawn]
    coming: Iterator[Pictures] = map(picture.drawn, work if executor is None else ())
    if executor is not None:
        with suppress(BrokenExecutor):
            coming = executor.map(picture.drawn, work)
    ready: list[Pictures] = []

    def pictures() -> tuple[Pictures, ...]:
        with suppress(BrokenExecutor):
            ready.extend(coming)
        if len(ready) < len(work):  # a process has died, and its pool with it: one alone needs less memory
            with suppress(BrokenExecutor, OSError), side_by_side(1, prepared=True) as alone:
                ready.extend(alone.map(picture.drawn, work[len(ready) :]))
        ready.extend([Unavailable(DIED)] * (len(work) - len(ready)))
        return tuple(ready)

    return Drawing(charts=drawn, left_out=left_out, formats=wanted, pictures=pictures)


def write(drawing: Drawing, folder: Path) -> tuple[Path, ...]:
    """Write each chart in its formats and as ``*.vl.json``, then ``charts.md``; the files written, it last.

    Nothing where there is no chart. Raises WriteError where files cannot be written.
    """
    written: list[Path] = []
    page = ["# Charts", ""]
    for chart, images in zip(drawing.charts, drawing.pictures(), strict=True):
        paths = [folder / f"{chart.stem}.{name}" for name in drawing.formats]
        if isinstance(images, Unavailable):
            paths = []
        else:
            for path, data in zip(paths, images[1:], strict=True):
                write_bytes(path, data)
        described = folder / f"{chart.stem}.vl.json"
        write_bytes(described, resolved(described_json(chart.spec)).encode(errors="replace"))
        written += [*paths, described]
        title = plain_text(chart.full_title)
        shown = [f"![{title}]({paths[0].name})", ""] if paths else []
        if isinstance(images, Unavailable):
            shown = [f"Not drawn: {images.reason}", ""]
        page += [f"## {title}", "", *shown, plain_text(chart.caption), ""]
    page += _left_out(drawing)
    if written:
        write_bytes(folder / CAPTIONS, "\n".join(page).encode(errors="replace"))
        written.append(folder / CAPTIONS)
    return tuple(written)


def described_json(spec: Spec) -> str:
    """Return a description to read and to change; nothing in it is markup, whoever shows it."""
    return json.dumps(spec, indent=1, allow_nan=False).replace("<", "\\u003c") + "\n"


def _left_out(drawing: Drawing) -> Iterable[str]:
    if not drawing.left_out:
        return ()
    return (
        f"## Left out: {counted(len(drawing.left_out), 'more chart')}",
        "",
        f"Reports hold {len(drawing.charts)} charts; `--cell`, `--datasets` or a smaller matrix show others. Not drawn:",
        "",
        *(f"- {plain_text(chart.full_title)}" for chart in drawing.left_out),
        "",
    )


def draw_charts(
    rows: Sequence[CommRow], folder: Path, calibration: Calibration | None = None, formats: Sequence[str] = ("png",)
) -> tuple[Path, ...]:
    """Draw every chart that collectives and their fits allow; the files written, ``charts.md`` (captions) last."""
    return write(begin({"rows": rows or None, "calibration": calibration}, formats, limit=None), folder)
