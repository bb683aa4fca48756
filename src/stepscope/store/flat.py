"""Records as flat CSV, for spreadsheets."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stepscope.records import codec

_FORMULA = re.compile(r"[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")


def records_csv(rows: Sequence[object], kind: type) -> str:
    """Rows of one record kind in base units: unknown is an empty field, settings and lists are JSON text."""
    names = codec.field_names(kind)
    plain = (codec.to_builtins(row) for row in rows)
    return csv_text(names, ([row[name] for name in names] for row in plain))


def csv_text(names: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """A header and rows of plain values: unknown is an empty field, settings and lists are JSON text.

    A text that a spreadsheet would take for a formula gets an apostrophe before it: names come from files of others.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_field, names))
    writer.writerows([_field(value) for value in row] for row in rows)
    return text.getvalue()


def _field(value: Any) -> str | int | float:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (Mapping, list, tuple)):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    if isinstance(value, str) and _FORMULA.match(value) and not _NUMBER.fullmatch(value):
        return f"'{value}"
    return value  # type: ignore[no-any-return]
