"""A table as CSV: raw values in base units, group columns included."""

from __future__ import annotations

import csv
import io

from stepscope.report.table import Table


def render(table: Table) -> str:
    """One header line (``key_unit`` where there is a unit), one line a row; unknown is empty, ``failure``
    comes last.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*(_header(c.key, c.unit) for c in table.columns), "failure"])
    for row in table.rows:
        writer.writerow([*("" if v.raw is None else v.raw for v in row.values), row.failure or ""])
    return text.getvalue()


def _header(key: str, unit: str) -> str:
    name = {"1/s": "per_s"}.get(unit, unit)
    return key if not name or key.endswith(name) else f"{key}_{name}"
