"""Any table of results: CSV, TSV, Markdown or JSON records, a row a run, an epoch, or a size of a collective.

Columns are recognised by the names and units that people give them (``_columns``); others are stated with ``--columns``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from stepscope.core.errors import DataError
from stepscope.records.comm import CommRow
from stepscope.records.imported import Imported, LeftOut, Stated
from stepscope.store.files import is_about
from stepscope.store.importer import Candidate, Importer
from stepscope.store.importers._columns import (
    CONFIGURED,
    FIGURES,
    KEYS,
    NAMES,
    RESULTS,
    Columns,
    columns_of,
    meanings_of,
)
from stepscope.store.importers._comm_table import comm_rows_of
from stepscope.store.importers._folders import LOOKED_AT, holds_traces, read_each
from stepscope.store.importers._table_lines import TableLine, lines_of
from stepscope.store.importers._table_refusals import require_ranks_of_a_job, require_stated_columns, unreadable
from stepscope.store.importers._table_runs import runs_of
from stepscope.store.importers._tables import TextTable, headers, read_tables
from stepscope.store.stated import with_stated
from stepscope.store.stated_columns import plain

SUFFIXES = (".csv", ".tsv", ".md", ".markdown", ".json", ".jsonl", ".ndjson")
MOST_JSON_BYTES = 4 << 20
"""A larger JSON document is not looked at to find out whether it holds records."""

RATES = NAMES["samples_per_s"].split()

_FOREIGN_JSON = re.compile(r'"(?:traceEvents|ph|schemaVersion|deviceProperties|schema)"\s*:')
_KEY = re.compile(r'"([^"\\]{1,60})"\s*:')
_AS_GIB = "memory in MB and GB is taken as MiB and GiB, as torch and nvidia-smi print it"
_NO_SAMPLES = "weak scaling, and no column states the samples per epoch: --columns NAME=dataset_size gives speed-ups"


def _recognises(candidate: Candidate) -> bool:
    """A file that may be a table at all, so that its refusal says how it would be read; a folder with a readable one."""
    if not candidate.is_folder:
        return candidate.path.suffix.lower() in SUFFIXES and (_is_table(candidate) or _knows(candidate))
    files = [Candidate(file, candidate.stated) for file in candidate.files if file.suffix.lower() in SUFFIXES]
    own = [file for file in files[:LOOKED_AT] if not is_about(file.path)]
    known = any(map(_knows, own)) or (bool(own) and all(map(_is_table, own)))
    return known and not holds_traces(candidate)


def _is_table(candidate: Candidate) -> bool:
    suffix = candidate.path.suffix.lower()
    if suffix == ".json":
        text = candidate.text
        known = text.lstrip()[:1] in ("{", "[") and not _FOREIGN_JSON.search(text) and _small(candidate)
        return known and any(map(meanings_of, set(_KEY.findall(text))))
    return suffix in (".jsonl", ".ndjson") or any(len(names) > 1 for names in headers(suffix, candidate.text))


def _small(candidate: Candidate) -> bool:
    return candidate.path.stat().st_size <= MOST_JSON_BYTES


def _knows(candidate: Candidate) -> bool:
    """Whether a file holds a table with a figure of a run or a collective."""
    suffix, stated = candidate.path.suffix.lower(), candidate.stated.columns
    if suffix not in (".json", ".jsonl", ".ndjson"):
        return any(_has_figures(columns_of(names, stated)) for names in headers(suffix, candidate.text))
    if not _is_table(candidate) or not _small(candidate):
        return False
    try:
        return any(_has_figures(columns_of(table.names, stated)) for table in read_tables(candidate.path))
    except DataError:
        return False


def by_unit(table: TextTable) -> Iterator[tuple[TextTable, dict[str, str]]]:
    """(rows of one unit, what their rate is called): a column ``throughput`` whose unit stands in a column of its own."""
    rates = [name for name in table.names if plain(name) in RATES]
    units = [at for at, name in enumerate(table.names) if plain(name) in ("unit", "units", "throughput_unit")]
    if len(rates) != 1 or len(units) != 1:
        yield table, {}
        return
    for unit in dict.fromkeys(row.cells[units[0]] for row in table.rows):
        rows = tuple(row for row in table.rows if row.cells[units[0]] == unit)
        yield replace(table, rows=rows), {rates[0]: f"throughput ({unit})"} if unit else {}


def _has_figures(columns: Columns) -> bool:
    """A row of memory alone is of a run where it says which: ``mem_gb`` beside a name is what a device has."""
    figures = columns.has(*FIGURES[:-1]) or (columns.has("time_ns") and columns.has("epoch", "op"))
    figures |= columns.has("peak_memory") and columns.has(*CONFIGURED)
    return (figures or (columns.has("epoch") and columns.has(*RESULTS))) and columns.has(*KEYS)


def _read(source: Candidate) -> Imported:
    path, stated = source.path, source.stated
    known = any(_knows(Candidate(each, stated)) for each in source.files)

    def look(each: Candidate) -> bool:
        candidate = Candidate(each.path, stated)
        return _knows(candidate) if known else _is_table(candidate) and not is_about(each.path)

    parts, left_out = read_each(source, look, read_tables, suffixes=SUFFIXES)
    every = [each for part in parts for table in part for each in by_unit(table)]
    tables = [(table, columns_of(table.names, {**stated.columns, **rates})) for table, rates in every]
    require_stated_columns(path, [table for table, _ in tables], stated)
    useful = [(table, columns) for table, columns in tables if _has_figures(columns)]
    if not useful:
        raise unreadable(path, tables)
    for table, columns in useful:
        require_ranks_of_a_job(table, columns, stated)
    found = _Rows()
    damaged: list[DataError] = []
    for file in dict.fromkeys(table.source for table, _ in useful):
        try:
            found.add([each for each in useful if each[0].source == file])
        except DataError as error:
            if not source.is_folder:
                raise
            damaged.append(error)
            left_out = (
                *left_out,
                LeftOut(path=str(file), reason=f"{error.what}: {error.why}" if error.why else error.what),
            )
    if not found.lines and not found.comm:
        raise (
            damaged[0]
            if damaged
            else DataError(f"{path}: no rows under the header", fix="pass the file of a run with results")
        )
    names = (name for table, _ in tables for name in table.names)
    return replace(_imported(path, found, stated, names), left_out=left_out)


@dataclass(slots=True)
class _Rows:
    """What the tables of the readable files hold."""

    tables: list[tuple[TextTable, Columns]] = field(default_factory=list)
    lines: list[TableLine] = field(default_factory=list)
    comm: list[CommRow] = field(default_factory=list)
    notes: tuple[str, ...] = ()

    def add(self, tables: list[tuple[TextTable, Columns]]) -> None:
        """All tables of one file. Raises DataError, and takes nothing, where one of its rows cannot be read."""
        rows: list[CommRow] = []
        notes: tuple[str, ...] = ()
        for table, columns in tables:
            if columns.has("op"):
                more, dropped = comm_rows_of(table, columns)
                rows += more
                notes += dropped
        lines = [line for table, columns in tables if not columns.has("op") for line in lines_of(table, columns)]
        runs_of(lines)
        self.tables += tables
        self.lines += lines
        self.comm += rows
        self.notes += notes


def _imported(path: Path, found: _Rows, stated: Stated, names: Iterable[str]) -> Imported:
    runs = runs_of(found.lines)
    useful = found.tables
    notes = (*found.notes, *(note for table, _ in useful for note in table.notes))
    unclear = [f"{table.source.name}: {why}" for table, columns in useful for why in columns.unclear.values()]
    memory = any(columns.has("peak_memory") for _, columns in useful)
    hardware = sorted({run.hardware for run in runs if run.hardware})
    if any(run.scaling == "weak" and run.epochs and run.samples_per_s is None for run in runs):
        notes = (_NO_SAMPLES, *notes)
    return Imported(
        format="table",
        path=str(path),
        runs=with_stated(runs, stated),
        comm_rows=tuple(found.comm),
        hardware=", ".join(hardware) if 0 < len(hardware) < 4 else None,
        notes=(*dict.fromkeys(unclear), *notes),
        remarks=(_AS_GIB,) if memory else (),
        columns=tuple(dict.fromkeys(names)),
    )


IMPORTER = Importer(
    title="table of results (CSV, Markdown, JSON records)", recognises=_recognises, read_files=_read, rank=95
)
