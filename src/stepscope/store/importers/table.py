"""Any table of results: CSV, TSV, Markdown or JSON records, a row a run, an epoch, or a size of a collective.

Columns are recognised by the names and units that people give them (``_columns``); others are stated with ``--columns``.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from stepscope.core.errors import DataError
from stepscope.records.comm import CommRow
from stepscope.records.imported import Imported, Stated
from stepscope.store.files import is_about
from stepscope.store.importer import Candidate, Importer
from stepscope.store.importers._columns import FIGURES, KEYS, RESULTS, Columns, columns_of, meanings_of
from stepscope.store.importers._comm_table import comm_rows_of
from stepscope.store.importers._folders import LOOKED_AT, holds_traces, read_each
from stepscope.store.importers._table_lines import Line, lines_of
from stepscope.store.importers._table_refusals import require_stated_columns, unreadable
from stepscope.store.importers._table_runs import runs_of
from stepscope.store.importers._tables import TextTable, headers, read_tables
from stepscope.store.stated import with_stated

SUFFIXES = (".csv", ".tsv", ".md", ".markdown", ".json", ".jsonl", ".ndjson")
MOST_JSON_BYTES = 4 << 20
"""A larger JSON document is not looked at to find out whether it holds records."""

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


def _has_figures(columns: Columns) -> bool:
    figures = columns.has(*FIGURES) or (columns.has("time_ns") and columns.has("epoch", "op"))
    return (figures or (columns.has("epoch") and columns.has(*RESULTS))) and columns.has(*KEYS)


def _read(source: Candidate) -> Imported:
    path, stated = source.path, source.stated
    known = any(_knows(Candidate(each, stated)) for each in source.files)

    def look(each: Candidate) -> bool:
        candidate = Candidate(each.path, stated)
        return _knows(candidate) if known else _is_table(candidate) and not is_about(each.path)

    parts, left_out = read_each(source, look, read_tables, suffixes=SUFFIXES)
    notes: tuple[str, ...] = ()
    tables = [(table, columns_of(table.names, stated.columns)) for part in parts for table in part]
    require_stated_columns(path, [table for table, _ in tables], stated)
    useful = [(table, columns) for table, columns in tables if _has_figures(columns)]
    if not useful:
        raise unreadable(path, tables)
    comm: list[CommRow] = []
    for table, columns in useful:
        if columns.has("op"):
            rows, dropped = comm_rows_of(table, columns)
            comm += rows
            notes = (*notes, *dropped)
    lines = [line for table, columns in useful if not columns.has("op") for line in lines_of(table, columns)]
    if not lines and not comm:
        raise DataError(f"{path}: no rows under the header", fix="pass the file of a run with results")
    return replace(_imported(path, lines, comm, useful, notes, stated), left_out=left_out)


def _imported(
    path: Path,
    lines: list[Line],
    comm: list[CommRow],
    useful: list[tuple[TextTable, Columns]],
    notes: tuple[str, ...],
    stated: Stated,
) -> Imported:
    runs = runs_of(lines)
    notes = (*notes, *(note for table, _ in useful for note in table.notes))
    unclear = [f"{table.source.name}: {why}" for table, columns in useful for why in columns.unclear.values()]
    memory = any(columns.has("peak_memory") for _, columns in useful)
    hardware = sorted({run.hardware for run in runs if run.hardware})
    if any(run.scaling == "weak" and run.epochs and run.samples_per_s is None for run in runs):
        notes = (_NO_SAMPLES, *notes)
    return Imported(
        format="table",
        path=str(path),
        runs=with_stated(runs, stated),
        comm_rows=tuple(comm),
        hardware=", ".join(hardware) if 0 < len(hardware) < 4 else None,
        notes=(*dict.fromkeys(unclear), *notes),
        remarks=(_AS_GIB,) if memory else (),
    )


IMPORTER = Importer(
    title="table of results (CSV, Markdown, JSON records)", recognises=_recognises, read_files=_read, rank=95
)
