"""A table as CSV: raw values in base units, group columns included."""

from __future__ import annotations

from stepscope.report.table import Table
from stepscope.store.flat import csv_text


def render(table: Table) -> str:
    """One header line (``key_unit`` where there is a unit), one line a row; unknown is empty, ``failure``
    comes last.
    """
    names = [*(_header(c.key, c.unit) for c in table.columns), "failure"]
    return csv_text(names, ([*(v.raw for v in row.values), row.failure or ""] for row in table.rows))


def _header(key: str, unit: str) -> str:
    name = {"1/s": "per_s"}.get(unit, unit)
    return key if not name or key.endswith(name) else f"{key}_{name}"
