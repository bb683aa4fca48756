"""A table of single steps of one run (``step,step_time_ms``; ``iteration,elapsed_ms``), in any form that tables have.

A column ``time`` or ``elapsed`` that grows from every row to the next is a clock, whose differences are the step times;
else its cells are the step times; both may be written 0:00:30. Steps of several ranks, or of several runs, in one file are
refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from stepscope.core.errors import DataError
from stepscope.records.imported import Imported
from stepscope.store.columns import TIMES, Columns, columns_of, meanings_of, require_meanings
from stepscope.store.importer import Candidate, Importer, read_each
from stepscope.store.tables import SUFFIXES, TextTable, headers, read_tables, records_in
from stepscope.store.training_runs import LoggedStep, Scalars, joined, run_of, slug

LEAST_ROWS = 5
"""Rows from which on a column that only grows is a clock: of 5 independent step times, 1 in 120 orders grows."""

_OF_RUNS = frozenset(["world_size", "strategy", "model", "hardware", "run", "epoch", "op", "size"])
"""Roles of tables whose rows are runs, epochs or sizes."""
_LOOKED_AT = 20
_CLOCK_TEXT = re.compile(r"(?:(\d{1,4}) days?, )?(\d{1,4}):([0-5]\d):([0-5]\d(?:\.\d{1,9})?)")
_CLOCK = "step time is the difference of {name!r} from row to row: everything between two rows is in it"
_SECONDS = "{name!r} has no unit: taken as seconds; --columns {name}=step_time_ms states another"


def _knows_steps(candidate: Candidate) -> bool:
    """Whether a file holds rows of steps, and nothing that tells runs apart."""
    tables = [columns_of(names, candidate.stated.columns) for names in headers(candidate)]
    if not any(map(_is_of_steps, tables)):
        return False
    # An epoch like 0.1 says how far the step has come: it is not the row of an epoch.
    records = records_in(candidate.text, _LOOKED_AT)
    epochs = (value for one in records for name, value in one.items() if name.rpartition("/")[2] == "epoch")
    parts = any(isinstance(epoch, float) and not epoch.is_integer() for epoch in epochs)
    return any(
        _is_of_steps(columns) and not columns.has(*_OF_RUNS - ({"epoch"} if parts else set())) for columns in tables
    )


def _is_of_steps(columns: Columns) -> bool:
    return columns.has("step") and (_time_column(columns) is not None or columns.has("steps_per_s", "samples_per_s"))


def _time_column(columns: Columns) -> tuple[str, int, float | None] | None:
    """Find the column of times, (role, index, scale to ns; None: no unit); the step's own goes before a clock."""
    timed = [(role, index, meaning.scale) for role, (index, meaning) in columns.by_role.items()]
    timed += [(meaning.role, i, None) for i in columns.unclear for meaning in meanings_of(columns.names[i])]
    of_steps = [column for column in timed if column[0] in ("step_ns", "time_ns")]
    return min(of_steps, key=lambda column: (column[2] is None, column[0]), default=None)


def _read_steps(source: Candidate) -> Imported:
    """Read the run of every table of steps."""
    stated = source.stated

    def read(path: Path) -> list[Imported]:
        runs = []
        for table in read_tables(path):
            columns = columns_of(table.names, stated.columns)
            if _is_of_steps(columns):
                scalars = _table_scalars(table, columns, path.stem if not source.is_folder else source.path.name)
                runs.append(replace(run_of(scalars, stated.columns), columns=table.names))
        return runs

    require_meanings(stated)
    parts, left_out = read_each(
        source, lambda file: _knows_steps(Candidate(file.path, stated)), read, suffixes=SUFFIXES
    )
    return joined("steps_csv", source, (run for runs in parts for run in runs), left_out=left_out)


def _table_scalars(table: TextTable, columns: Columns, group: str) -> Scalars:
    """Return the logged steps of a table. Raises DataError where steps do not go up."""
    path, (at, _) = table.source, columns.by_role["step"]
    points = [LoggedStep(row.step(at)) for row in table.rows]
    for row, (before, point) in zip(table.rows[1:], pairwise(points), strict=True):
        if point.step <= before.step:
            raise DataError(
                f"{row.where}: {table.names[at]} {point.step} after {before.step}",
                why="the steps of one run go up; of several ranks or runs, the file does not state which is which",
                fix="write one file per run with one row per step (of several ranks the slowest)",
            )
    notes: list[str] = []
    unread = list(table.notes)
    if time := _time_column(columns):
        role, index, scale = time
        name = table.names[index]
        if times := _clock_texts(table, index):
            scale = TIMES["s"]
        else:
            times = [None if value is None or math.isnan(value) else value for value in _column_figures(table, index)]
        if scale is None:
            unread.append(_SECONDS.format(name=name))
            scale = TIMES["s"]
        timed = [
            (row, point, value)
            for row, point, value in zip(table.rows, points, times, strict=True)
            if value is not None
        ]
        if role == "time_ns" and _is_clock_column(path, name, [value for *_, value in timed]):
            notes.append(_CLOCK.format(name=name))
            for (_, before, start), (_, point, end) in pairwise(timed):
                point.values["step_time_ns"] = (end - start) / (point.step - before.step) * scale
        else:
            for row, point, time_of_step in timed:
                if time_of_step <= 0:
                    raise row.wrong(index, "a time above 0")
                point.values["step_time_ns"] = time_of_step * scale
    for column_role, (index, _) in columns.by_role.items():
        if column_role not in ("step", "step_ns", "time_ns", "epoch"):
            for point, value in zip(points, _column_figures(table, index), strict=True):
                if value is not None:
                    point.values[table.names[index]] = value
    if not any(point.values for point in points):
        raise DataError(f"{path}: no figure under its header", fix="pass the file of a run that finished a step")
    return Scalars(
        source=str(path), run_id=slug(path.stem) or "run", group=group, points=points, notes=notes, unread=unread
    )


def _clock_texts(table: TextTable, index: int) -> list[float | None]:
    """Read a column of texts like 0:00:30 or ``1 day, 2:03:04`` as seconds; nothing where one of them is none."""
    matches = [match for row in table.rows if (match := _CLOCK_TEXT.fullmatch(row.cells[index]))]
    if len(matches) < len(table.rows):
        return []
    return [
        sum(float(text or 0) * unit for text, unit in zip(match.groups(), (86_400, 3_600, 60, 1), strict=True))
        for match in matches
    ]


def _is_clock_column(path: Path, name: str, times: Sequence[float]) -> bool:
    """Return whether the column is a clock. Raises DataError where there are too few rows to know."""
    if len(times) < 2 or not all(a < b for a, b in pairwise(times)):
        return False
    if len(times) < LEAST_ROWS:
        raise DataError(
            f"{path}: {name!r} may be the time of a step, or since the start",
            why=f"it grows from row to row, and {len(times)} rows are too few to know",
            fix=f"state what it is: --columns {name}=step_time_s; or write the times of single steps",
        )
    return True


def _column_figures(table: TextTable, index: int) -> list[float | None]:
    return [row.figure(index) for row in table.rows]


IMPORTER = Importer(
    title="table of single steps of a run",
    recognises=_knows_steps,
    read_files=_read_steps,
    rank=78,
    suffixes=(".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".md", ".markdown", ".txt"),
)
