"""Charts, one file each: ``CHART`` with ``needs``, ``prepare`` (pure), ``draw`` and ``caption``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.core.registry import Registry

if TYPE_CHECKING:
    from stepscope.records.calibration import Calibration
    from stepscope.records.comm import CommRow
    from stepscope.report.charts._common import Chart

REGISTRY: Registry[Chart] = Registry("stepscope.report.charts", "CHART", "chart")


def draw_charts(
    rows: Sequence[CommRow],
    folder: Path,
    calibration: Calibration | None = None,
    formats: Sequence[str] = ("png",),
) -> tuple[Path, ...]:
    """Draw every chart that these records allow into ``folder``; the files written, ``charts.md`` (captions) last.

    Raises UsageError for an unknown format, WriteError where files cannot be written.
    """
    from stepscope.report.charts._files import write_charts

    return write_charts({"rows": rows or None, "calibration": calibration}, folder, formats=formats)
