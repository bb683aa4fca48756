"""The sections of a trace report, in the order they are shown: key -> its table."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from stepscope.core.errors import UsageError
from stepscope.core.suggest import unknown

if TYPE_CHECKING:
    from stepscope.records.trace_summary import TraceSummary
    from stepscope.report.table import Table
    from stepscope.report.views._common import View

SECTIONS: dict[str, str] = {
    "budget": "trace_budget",
    "overlap": "trace_overlap",
    "steps": "trace_steps",
    "phases": "trace_phases",
    "idle": "trace_idle",
    "collectives": "trace_collectives",
    "groups": "trace_groups",
    "stragglers": "trace_stragglers",
    "buckets": "trace_buckets",
    "units": "trace_units",
    "layers": "trace_layers",
    "operators": "trace_operators",
    "kernels": "trace_kernels",
    "launches": "trace_launches",
    "copies": "trace_copies",
    "annotations": "trace_annotations",
    "modules": "trace_modules",
    "sequences": "trace_sequences",
    "memory": "trace_memory",
    "utilisation": "trace_utilisation",
    "path": "trace_path",
    "conformance": "trace_conformance",
}
"""Section -> module under report/views."""

DEFAULT = ("budget", "collectives", "stragglers")
"""Shown after the findings when nothing else is asked for."""

ALL = "all"


def chosen(names: Iterable[str]) -> tuple[str, ...]:
    """The sections asked for, in report order; ``all`` for every one. Raises UsageError for an unknown name."""
    asked = {n.strip() for n in names if n.strip()}
    for name in sorted(asked - {ALL}):
        if name not in SECTIONS:
            raise UsageError(unknown("section", name, [*SECTIONS, ALL]))
    if not asked:
        return tuple(s for s in SECTIONS if s in DEFAULT)
    return tuple(s for s in SECTIONS if ALL in asked or s in asked)


def view_of(section: str) -> View:
    """The view of a section."""
    module = importlib.import_module(f"stepscope.report.views.{SECTIONS[section]}")
    view: View = module.VIEW
    return view


def table(summary: TraceSummary, section: str) -> Table:
    """One section of a trace as a table (``.to_pandas()``, ``.to_polars()``). Raises UsageError for an unknown one."""
    build = view_of(chosen([section])[0]).table
    assert build is not None, section
    return build(summary)
