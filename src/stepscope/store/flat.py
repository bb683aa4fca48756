"""Records as flat CSV, for spreadsheets."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from stepscope.records import codec


def records_csv(rows: Sequence[object], kind: type) -> str:
    """Rows of one record kind in base units: unknown is an empty field, settings and lists are JSON text."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = codec.field_names(kind)
    writer.writerow(names)
    for row in rows:
        plain = codec.to_builtins(row)
        writer.writerow([_field(plain[name]) for name in names])
    return text.getvalue()


def _field(value: Any) -> str | int | float:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (dict, list, tuple)):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return value  # type: ignore[no-any-return]
