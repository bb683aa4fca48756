"""Charts, one file each: ``CHART`` with ``needs``, ``prepare`` (pure), ``draw`` and ``caption``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.core.registry import Registry

if TYPE_CHECKING:
    from stepscope.records.calibration import Calibration
    from stepscope.records.comm import CommRow
    from stepscope.report.charts._common import Chart

REGISTRY: Registry[Chart] = Registry("stepscope.report.charts", "CHART", "chart")

MAX_FIGURES = 36
"""Figures of one report: nobody looks at more."""

MANY_RUNS, FEW_FIGURES = 100, 14
"""From so many runs on, so many figures: drawing takes 0.3 s a figure, and the first of each chart say most."""


def draw(
    records: Mapping[str, Any],
    folder: Path,
    formats: Sequence[str] = ("png",),
    *,
    limit: int | None = -1,
) -> tuple[Path, ...]:
    """Draw what ``records`` allow into ``folder``; the files written, ``charts.md`` (captions) last.

    records: by the names that charts need and want: ``rows`` (collectives), ``calibration``, ``runs``, ``scaling``,
    ``cells``, ``traces``, ``drop_epochs``; None or absent: there is none. formats: png, svg, pdf. limit: most figures, of
    every chart the first ones, the rest is named in ``charts.md``; None: all; -1: as many as a report should have.
    Raises UsageError for an unknown format, WriteError where files cannot be written.
    """
    return begin(records, folder, formats, limit=limit)()


def begin(
    records: Mapping[str, Any],
    folder: Path,
    formats: Sequence[str] = ("png",),
    *,
    limit: int | None = -1,
    executor: Executor | None = None,
) -> Callable[[], tuple[Path, ...]]:
    """Begin to draw as ``draw``, in the processes of ``executor``; what is returned waits, writes, and gives the files."""
    from stepscope.report.charts._files import begin_charts

    if limit == -1:
        limit = MAX_FIGURES if len(records.get("runs") or ()) < MANY_RUNS else FEW_FIGURES
    return begin_charts(records, folder, formats=formats, limit=limit, executor=executor)


def draw_charts(
    rows: Sequence[CommRow],
    folder: Path,
    calibration: Calibration | None = None,
    formats: Sequence[str] = ("png",),
) -> tuple[Path, ...]:
    """Draw every chart that collectives and their fits allow; the files written, ``charts.md`` (captions) last."""
    return draw({"rows": rows or None, "calibration": calibration}, folder, formats, limit=None)
