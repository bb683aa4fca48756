"""The sections of a trace report, in the order they are shown: key -> its table."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from types import ModuleType
from typing import TYPE_CHECKING

from stepscope.core.errors import UsageError
from stepscope.core.words import unknown
from stepscope.traces import sections

if TYPE_CHECKING:
    from stepscope.records.trace_summary import TraceSummary
    from stepscope.report.table import Table

SECTIONS = {section.name: section.view for section in sections.SECTIONS if section.view}
"""Key of a section -> its file: each has its view, ``trace_KEY``, in ``views/trace_FILE.py``."""

DEFAULT = tuple(section.name for section in sections.SECTIONS if section.shown)
"""Sections that are shown after the findings when nothing else is asked for."""

ALL = "all"


def chosen(names: Iterable[str]) -> tuple[str, ...]:
    """Return the sections asked for, in report order; ``all`` for every one. Raises UsageError for an unknown name."""
    asked = {n.strip() for n in names if n.strip()}
    for name in sorted(asked - {ALL}):
        if name not in SECTIONS:
            raise UsageError(unknown("section", name, [*SECTIONS, ALL]))
    if not asked:
        return DEFAULT
    return tuple(s for s in SECTIONS if ALL in asked or s in asked)


def table(summary: TraceSummary, section: str) -> Table:
    """Return one section of a trace as a table (``.to_pandas()``, ``.to_polars()``). Raises UsageError if it is unknown."""
    [key] = chosen([section])
    made: Table = next(view.table(summary) for view in load(key).VIEWS if view.key == f"trace_{key}")
    return made


def load(section: str) -> ModuleType:
    """Return the module of a section's view."""
    return importlib.import_module(f"stepscope.report.views.trace_{SECTIONS[section]}")
