"""A table of single steps of one run (``step,step_time_ms``; ``iteration,elapsed_ms``): CSV, TSV or JSON lines.

A column ``time`` or ``elapsed`` that grows from every row to the next is a clock, whose differences are the step times;
else its cells are the step times; both may be written 0:00:30. Steps of several ranks, or of several runs, in one file are
refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from stepscope.core.errors import DataError
from stepscope.records.imported import Imported, Stated
from stepscope.store.columns import TIMES, Columns, columns_of, meanings_of, number, require_meanings
from stepscope.store.importer import Candidate, Importer, read_each
from stepscope.store.tables import NOT_FINITE, TextRow, TextTable, has_json_lines, headers, read_tables
from stepscope.store.training_runs import LoggedStep, Scalars, joined, run_of, slug

SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".ndjson")
LEAST_ROWS = 5
"""Rows from which on a column that only grows is a clock: of 5 independent step times, 1 in 120 orders grows."""

_OF_RUNS = ("world_size", "strategy", "model", "hardware", "run", "epoch", "op", "size")
"""Roles of tables whose rows are runs, epochs or sizes."""
_LOOKED_AT = 20
_CLOCK_TEXT = re.compile(r"(?:(\d{1,4}) days?, )?(\d{1,4}):([0-5]\d):([0-5]\d(?:\.\d{1,9})?)")
_RATES = ("steps_per_s", "samples_per_s")
_UNKNOWN = ("", "-", "n/a", "na", "none", "null")
_CLOCK = "step time is the difference of {name!r} from row to row: everything between two rows is in it"
_SECONDS = "{name!r} has no unit: taken as seconds; --columns {name}=step_time_ms states another"


def _knows(candidate: Candidate) -> bool:
    parts = _epochs_in_parts(candidate)
    return any(_is_of_steps(names, candidate.stated, parts=parts) for names in _headers(candidate))


def _epochs_in_parts(candidate: Candidate) -> bool:
    """Return whether one of the first JSON lines has an epoch like 0.1: how far the step has come, not a row of an epoch."""
    if not has_json_lines(candidate.path.suffix, candidate.text):
        return False
    for line in candidate.text.split("\n", _LOOKED_AT)[:_LOOKED_AT]:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        named = record.items() if isinstance(record, dict) else ()
        epochs = (value for name, value in named if name.rpartition("/")[2] == "epoch")
        if any(isinstance(epoch, float) and not epoch.is_integer() for epoch in epochs):
            return True
    return False


def _headers(candidate: Candidate) -> list[Sequence[str]]:
    suffix = candidate.path.suffix.lower()
    if not has_json_lines(suffix, candidate.text):
        return list(headers(suffix, candidate.text)) if suffix in SUFFIXES else []
    try:
        first = json.loads(candidate.text.strip().partition("\n")[0])
    except (ValueError, RecursionError):
        return []
    return [list(first)] if isinstance(first, dict) else []


def _is_of_steps(names: Sequence[str], stated: Stated, *, parts: bool) -> bool:
    columns = columns_of(names, stated.columns)
    timed = _time_column(columns) is not None or columns.has(*_RATES)
    return columns.has("step") and timed and not columns.has(*(r for r in _OF_RUNS if r != "epoch" or not parts))


def _time_column(columns: Columns) -> tuple[int, str, float | None] | None:
    """Find the column of times, (index, role, scale to ns; None: no unit); the step's own goes before a clock."""
    for role in ("step_ns", "time_ns"):
        if role in columns.by_role:
            index, meaning = columns.by_role[role]
            return index, role, meaning.scale
    unclear = [(i, meaning.role) for i in columns.unclear for meaning in meanings_of(columns.names[i])]
    bare = sorted(column for column in unclear if column[1] in ("step_ns", "time_ns"))
    return min(((i, role, None) for i, role in bare), key=lambda column: column[1] != "step_ns", default=None)


def _read(source: Candidate) -> Imported:
    stated = source.stated

    def recognises(file: Candidate) -> bool:
        return _knows(Candidate(file.path, stated))

    def read(path: Path) -> Imported:
        (table,) = read_tables(path)
        scalars = _scalars(table, stated, path.stem if not source.is_folder else source.path.name)
        return replace(run_of(scalars, stated.columns), columns=table.names)

    require_meanings(stated)
    parts, left_out = read_each(source, recognises, read, suffixes=SUFFIXES)
    return joined("steps_csv", source, parts, left_out=left_out)


def _scalars(table: TextTable, stated: Stated, group: str) -> Scalars:
    path = table.source
    columns = columns_of(table.names, stated.columns)
    numbers = _step_numbers(table, columns)
    points = [LoggedStep(step) for step in numbers]
    notes: list[str] = []
    unread = list(table.notes)
    time = _time_column(columns)
    if time is not None:
        index, role, scale = time
        name = table.names[index]
        if clocks := _clock_texts(table, index):
            times, scale = clocks, TIMES["s"]
        else:
            times = [value if value is None or math.isfinite(value) else None for value in _cells(table, index)]
        if scale is None:
            unread.append(_SECONDS.format(name=name))
            scale = TIMES["s"]
        if role == "time_ns" and _grows(path, name, times):
            notes.append(_CLOCK.format(name=name))
            _by_clock(points, times, scale)
        else:
            for row, point, value in zip(table.rows, points, times, strict=True):
                if value is not None and value <= 0:
                    raise row.wrong(index, name, "a time above 0")
                if value is not None:
                    point.values["step_time_ns"] = value * scale
    for column_role, (index, _) in columns.by_role.items():
        if column_role not in ("step", "step_ns", "time_ns", "epoch"):
            for point, value in zip(points, _cells(table, index), strict=True):
                if value is not None:
                    point.values[table.names[index]] = value
    if not any(point.values for point in points):
        raise DataError(f"{path}: no figure under its header", fix="pass the file of a run that finished a step")
    return Scalars(
        source=str(path), run_id=slug(path.stem) or "run", group=group, points=points, notes=notes, unread=unread
    )


def _step_numbers(table: TextTable, columns: Columns) -> list[int]:
    index = columns.by_role["step"][0]
    numbers: list[int] = []
    for row, value in zip(table.rows, _cells(table, index), strict=True):
        step = row.whole(index, table.names[index], value)
        if numbers and step <= numbers[-1]:
            raise DataError(
                f"{row.where}: {table.names[index]} {step} after {numbers[-1]}",
                why="the steps of one run go up; of several ranks or runs, the file does not state which is which",
                fix="write one file per run with one row per step (of several ranks the slowest)",
            )
        numbers.append(step)
    return numbers


def _clock_texts(table: TextTable, index: int) -> list[float | None]:
    """Read a column of texts like 0:00:30 or ``1 day, 2:03:04`` as seconds; nothing where one of them is none."""
    matches = [_CLOCK_TEXT.fullmatch(row.cells[index].strip()) for row in table.rows]
    if not all(matches):
        return []
    return [
        int(f[1] or 0) * 86_400 + int(f[2]) * 3_600 + int(f[3]) * 60 + float(f[4]) for f in matches if f is not None
    ]


def _grows(path: Path, name: str, times: Sequence[float | None]) -> bool:
    """Return whether the column is a clock. Raises DataError where there are too few rows to know."""
    timed = [time for time in times if time is not None]
    if len(timed) < 2 or not all(a < b for a, b in pairwise(timed)):
        return False
    if len(timed) < LEAST_ROWS:
        raise DataError(
            f"{path}: {name!r} may be the time of a step, or since the start",
            why=f"it grows from row to row, and {len(timed)} rows are too few to know",
            fix=f"state what it is: --columns {name}=step_time_s; or write the times of single steps",
        )
    return True


def _by_clock(points: Sequence[LoggedStep], times: Sequence[float | None], scale: float) -> None:
    read = [(point, time) for point, time in zip(points, times, strict=True) if time is not None]
    for (before, start), (point, end) in pairwise(read):
        point.values["step_time_ns"] = (end - start) / (point.step - before.step) * scale


def _cells(table: TextTable, index: int) -> list[float | None]:
    return [_cell(row, index, table.names[index]) for row in table.rows]


def _cell(row: TextRow, index: int, name: str) -> float | None:
    """Read a number: None for an empty cell, NaN for what is not finite. Raises DataError for what is not a number."""
    text = row.cells[index]
    if text.lower() in _UNKNOWN:
        return None
    if text.lower() in NOT_FINITE:
        return math.nan
    parsed = number(text)
    if parsed is None or parsed[1] not in ("", "%"):
        raise row.wrong(index, name, "a number")
    return parsed[0]


IMPORTER = Importer(
    title="table of single steps of a run",
    recognises=_knows,
    read_files=_read,
    rank=78,
    suffixes=(".csv", ".tsv", ".json", ".jsonl", ".ndjson"),
)
