"""Charts, one file each: ``CHART`` with ``needs``, ``prepare`` (pure), ``draw`` and ``caption``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.core.registry import Registry

if TYPE_CHECKING:
    from stepscope.records.calibration import Calibration
    from stepscope.records.comm import CommRow
    from stepscope.report.charts._common import Chart

REGISTRY: Registry[Chart] = Registry("stepscope.report.charts", "CHART", "chart")

MAX_FIGURES = 24
"""Figures of one report: each takes about a tenth of a second, and nobody looks at more."""


def draw(
    records: Mapping[str, Any],
    folder: Path,
    formats: Sequence[str] = ("png",),
    *,
    limit: int | None = MAX_FIGURES,
) -> tuple[Path, ...]:
    """Draw what ``records`` allow into ``folder``; the files written, ``charts.md`` (captions) last.

    records: by the names that charts need and want: ``rows`` (collectives), ``calibration``, ``runs``, ``scaling``,
    ``cells``, ``traces``, ``drop_epochs``; None or absent: there is none. formats: png, svg, pdf. limit: most figures, of
    every kind the first ones; what is left out is named in ``charts.md``.
    Raises UsageError for an unknown format, WriteError where files cannot be written.
    """
    from stepscope.report.charts._files import write_charts

    return write_charts(records, folder, formats=formats, limit=limit)


def draw_charts(
    rows: Sequence[CommRow],
    folder: Path,
    calibration: Calibration | None = None,
    formats: Sequence[str] = ("png",),
) -> tuple[Path, ...]:
    """Draw every chart that collectives and their fits allow; the files written, ``charts.md`` (captions) last."""
    return draw({"rows": rows or None, "calibration": calibration}, folder, formats, limit=None)
