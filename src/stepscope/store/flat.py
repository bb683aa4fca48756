"""Records as flat CSV, for spreadsheets."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stepscope.records import codec


def records_csv(rows: Sequence[object], kind: type) -> str:
    """Rows of one record kind in base units: unknown is an empty field, settings and lists are JSON text."""
    names = codec.field_names(kind)
    plain = (codec.to_builtins(row) for row in rows)
    return csv_text(names, ([row[name] for name in names] for row in plain))


def csv_text(names: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """A header and rows of plain values: unknown is an empty field, settings and lists are JSON text."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_field(value) for value in row] for row in rows)
    return text.getvalue()


def _field(value: Any) -> str | int | float:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (Mapping, list, tuple)):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return value  # type: ignore[no-any-return]
