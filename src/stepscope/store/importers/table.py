"""Any table of results: CSV, TSV, Markdown or JSON records, a row a run, an epoch, or a size of a collective.

Columns are recognised by the names and units that people give them (``store/columns.py``); others are stated with
``--columns``. A table that cannot be read is refused with the columns that were found, and what to type or to write.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from stepscope.core.bus_factor import BUS_FACTORS
from stepscope.core.errors import DataError
from stepscope.core.words import grouped, listed
from stepscope.records.comm import CommRow
from stepscope.records.imported import Imported, LeftOut, Stated
from stepscope.store.columns import (
    CONFIGURED,
    FIGURES,
    KEYS,
    NAMES,
    RESULTS,
    TIMES,
    Columns,
    absent_columns,
    columns_of,
    is_gpu_count,
    meanings_of,
    no_such_column,
    number,
    plain,
    require_meanings,
)
from stepscope.store.comm_table import comm_rows_of
from stepscope.store.importer import Candidate, Importer, is_about, read_each
from stepscope.store.log_lines import SUFFIXES as TEXTS
from stepscope.store.stated import with_stated
from stepscope.store.table_runs import runs_of
from stepscope.store.tables import JSON_LINES, SUFFIXES, TableLine, TextTable, headers, lines_of, read_tables
from stepscope.store.text_signs import signs_beside

_WIDE = 3
_TIME_WORD = re.compile(r"(?:^|_)(?:\d*time|duration|latency|runtime|elapsed|[nuµm]s|s|secs?|seconds)(?:_|$)")
_TIMED = re.compile(rf"{_TIME_WORD.pattern}|(?:^|_)(?:throughput|speed)(?:_|$)")
_OF_A_RUN = ("run", "strategy", "model")
_NODES = ("nodes", "n_nodes", "nnodes", "num_nodes", "node_count", "number_of_nodes")
KNOWN = "world_size, strategy, model, step_time_ms, tokens_per_s, epoch_time_s, peak_memory_gib"
_SERIES = (
    "write one row per step as CSV, with columns such as step,step_time_ms (or epoch,epoch_time_s), one file per run"
)
LONG = "write one row per run as CSV, with columns such as gpus,model,samples_per_s"


def require_stated_columns(path: Path, tables: Sequence[TextTable], stated: Stated) -> None:
    """Raise UsageError where no table has any of the columns that the user names, or what one means is not known.

    One of several may be another source's: ``results.missing`` finds those that nothing has.
    """
    require_meanings(stated)
    names = [name for table in tables for name in table.names]
    absent = absent_columns(names, stated)
    if absent and len(absent) == len(stated.columns):
        raise no_such_column(absent[0], names, path)


def require_ranks_of_a_job(table: TextTable, columns: Columns, stated: Stated) -> None:
    """Raise DataError for one number of GPUs beside several numbers of nodes: it may be that of a node."""
    at, ranks = (
        next((i for i, n in enumerate(table.names) if plain(n) in _NODES), None),
        columns.by_role.get("world_size"),
    )
    if at is None or ranks is None or at not in table.varying or ranks[0] in table.varying:
        return
    name = table.names[ranks[0]]
    if plain(name) not in map(plain, stated.columns):
        raise DataError(
            f"{table.rows[0].where}: {name} is {table.rows[0].cells[ranks[0]]} on any number of nodes",
            why=f"it may count the ranks of a node, and {table.names[at]} varies",
            fix=f"write the ranks of all nodes; if {name} counts them already: --columns {name}=world_size",
        )


def unreadable(path: Path, tables: Sequence[tuple[TextTable, Columns]]) -> DataError:
    """Return the error: which columns were found, and what to type or to write so that the table can be read."""
    if not tables:
        return DataError(f"{path}: no table in it", fix="pass a file with a table: CSV, TSV, Markdown, JSON records")
    table, columns = max(tables, key=lambda pair: len(pair[1].by_role))
    column_names = ", ".join(name for name in table.names[:20] if name) + (", ..." if len(table.names) > 20 else "")
    by_ranks = [name for name in table.names if is_gpu_count(name)]
    if len(by_ranks) > 1:
        return DataError(
            f"{path}: one column per number of ranks ({', '.join(by_ranks)})",
            why="a row holds several runs, and the table does not state what the figures are",
            fix=LONG,
        )
    figures = {role: table.names[at] for role, (at, _) in columns.by_role.items() if role in (*FIGURES, "time_ns")}
    times = [table.names[i] for i in columns.unclear if meanings_of(table.names[i])[0].role == "time_ns"]
    figures |= {"time_ns": times[0]} if times else {}
    free = [
        table.names[i]
        for i in (*columns.unclear, *columns.others)
        if table.names[i] and any(number(row.cells[i]) for row in table.rows)
    ]
    name = free[0] if len(free) == 1 else "NAME"
    unnamed = [column for column in free if _TIMED.search(plain(column))]
    series = next((numbered for numbered in _counting_series(free) if len(numbered) >= _WIDE), [])
    if columns.has("epoch") and not (figures or unnamed or columns.unclear):
        return DataError(
            f"{path}: a table of epochs without times",
            why=f"no column is a time or a rate, so that nothing of the speed is in it; the columns are: {column_names}",
            fix="take a profile of the job: stepscope profile -- COMMAND; or add a column such as epoch_time_s",
        )
    if columns.has("op", "bandwidth") and not columns.has("time_ns"):
        return DataError(
            f"{path}: a table of collectives without the time of a call",
            why=f"bandwidths are made of it, and {'size has no unit' if columns.unclear else 'it is not there'}; "
            f"the columns are: {column_names}",
            fix="give the output of nccl-tests itself, or columns op, size_bytes, time_us and ranks",
        )
    lacks, example = "no column is a time or a throughput", f"{name}=samples_per_s"
    if columns.has("size") and columns.has("time_ns"):
        lacks, example = "no column names the collective", f"{_naming_an_op(table) or 'NAME'}=op"
    elif "time_ns" in figures:
        lacks = f"{figures['time_ns']!r} may be the time of a step, of an epoch or of a whole run"
        example = f"{figures['time_ns']}=epoch_time_s"
    elif figures.keys() - {"peak_memory"}:
        lacks, example = "no column identifies a run", f"{name}=world_size"
    elif series:
        lacks = f"{series[0]} to {series[-1]} are a series: a row holds several steps or epochs of a run"
        example = f"{series[0]}={_known_like(series[0])}"
    elif unnamed:
        which = "is a time or a rate" if len(unnamed) == 1 else "are times or rates"
        lacks = f"{listed(unnamed, at_most=4)} {which}, and no name says that it is of a step or an epoch"
        example = f"{name if name in unnamed else 'NAME'}={_known_like(unnamed[0])}"
    state = f"state what a column is: --columns {example} (or {KNOWN}; of collectives op, size_bytes and time_us)"
    long = _SERIES if series else LONG
    if not series and (columns.has(*_OF_A_RUN) or (unnamed and columns.has("world_size"))):  # a row is a run already
        long = "add a column such as step_time_ms or samples_per_s"
    wide = len([i for i in columns.others if all(number(row.cells[i]) for row in table.rows)]) >= _WIDE
    return DataError(
        f"{path}: which column is what?",
        why=f"{'; '.join([lacks, *columns.unclear.values()])}; the columns are: {column_names}",
        fix=f"{long}; or {state}" if wide and not (figures or unnamed or columns.unclear) else f"{state}; or {long}",
    )


def _counting_series(names: Sequence[str]) -> list[list[str]]:
    """Find names of times and rates that count on: ``step_1_ms``, ``step_2_ms``; percentiles do not."""
    timed = [name for name in names if len(re.findall(r"\d{1,9}", name)) == 1 and _TIMED.search(plain(name))]
    alike = grouped(timed, lambda name: re.sub(r"\d+", "#", plain(name))).values()
    return [one for one in alike if all(_number_in(b) - _number_in(a) == 1 for a, b in pairwise(one))]


def _number_in(name: str) -> int:
    return int(re.sub(r"\D", "", name))


def _known_like(name: str) -> str:
    """Return a name that the vocabulary knows, in the unit of a time or a rate of another name."""
    last = plain(name).rpartition("_")[2]
    what = "epoch_time" if "epoch" in plain(name) else "step_time"
    return f"{what}_{last if last in TIMES else 's'}" if _TIME_WORD.search(plain(name)) else "samples_per_s"


def _naming_an_op(table: TextTable) -> str | None:
    """Return the column in whose first row the name of a collective stands, or None."""
    cells = zip(table.names, table.rows[0].cells if table.rows else (), strict=False)
    return next((name for name, text in cells if any(op in text for op in BUS_FACTORS)), None)


MOST_JSON_BYTES = 4 << 20
"""Most bytes of a JSON document that is looked at to find out whether it holds records."""

RATES = NAMES["samples_per_s"].split()

_FOREIGN_JSON = re.compile(r'"(?:traceEvents|ph|schemaVersion|deviceProperties|schema)"\s*:')
_KEY = re.compile(r'"([^"\\]{1,60})"\s*:')
_AS_GIB = "memory in MB and GB is taken as MiB and GiB, as torch and nvidia-smi print it"
_NO_SAMPLES = "weak scaling, and no column states the samples per epoch: --columns NAME=dataset_size gives speed-ups"


def _may_be_table(candidate: Candidate) -> bool:
    """Return whether a file may be a table at all, so that its refusal says how it would be read; a text where it is one."""
    if candidate.path.suffix.lower() in TEXTS:
        return _knows_table(candidate) and not signs_beside((candidate.path,))
    return _is_table(candidate) or _knows_table(candidate)


def _is_table(candidate: Candidate) -> bool:
    """Whether a file's names are those of a table: some column has a known meaning."""
    if candidate.path.suffix.lower() != ".json":
        return candidate.path.suffix.lower() in JSON_LINES or any(len(names) > 1 for names in headers(candidate))
    text = candidate.text
    return (
        text.lstrip()[:1] in ("{", "[")
        and not _FOREIGN_JSON.search(text)
        and candidate.path.stat().st_size <= MOST_JSON_BYTES
        and any(map(meanings_of, set(_KEY.findall(text))))
    )


def _knows_table(candidate: Candidate) -> bool:
    """Return whether a file holds a table with a figure of a run or a collective."""
    every: Iterable[Sequence[str]] = headers(candidate)
    if candidate.path.suffix.lower() in (".json", *JSON_LINES):
        if not _is_table(candidate) or candidate.path.stat().st_size > MOST_JSON_BYTES:
            return False
        try:
            every = [table.names for table in read_tables(candidate.path)]
        except DataError:
            return False
    return any(_has_figures(columns_of(names, candidate.stated.columns)) for names in every)


def by_unit(table: TextTable) -> Iterator[tuple[TextTable, dict[str, str]]]:
    """Yield (rows of one unit, column -> name of their rate) where ``throughput`` has its unit in a column of its own."""
    rates = [name for name in table.names if plain(name) in RATES]
    units = [at for at, name in enumerate(table.names) if plain(name) in ("unit", "units", "throughput_unit")]
    if len(rates) != 1 or len(units) != 1:
        yield table, {}
        return
    for unit in dict.fromkeys(row.cells[units[0]] for row in table.rows):
        rows = tuple(row for row in table.rows if row.cells[units[0]] == unit)
        yield replace(table, rows=rows), {rates[0]: f"throughput ({unit})"} if unit else {}


def _has_figures(columns: Columns) -> bool:
    """Return whether rows have figures of runs; memory alone only with a configuration: ``mem_gb`` may be a device's."""
    figures = columns.has(*FIGURES[:-1]) or (columns.has("time_ns") and columns.has("epoch", "op"))
    figures |= columns.has("peak_memory") and columns.has(*CONFIGURED)
    return (figures or (columns.has("epoch") and columns.has(*RESULTS))) and columns.has(*KEYS)


def _read_tables_of_runs(source: Candidate) -> Imported:
    """Read all tables as runs or collectives. Raises DataError where no column is known."""
    path, stated = source.path, source.stated
    recognised = any(_knows_table(Candidate(file, stated)) for file in source.files)

    def reads(file: Candidate) -> bool:
        candidate = Candidate(file.path, stated)
        return _knows_table(candidate) if recognised else _is_table(candidate) and not is_about(file.path)

    parts, left_out = read_each(source, reads, read_tables, suffixes=SUFFIXES)
    every = [pair for part in parts for table in part for pair in by_unit(table)]
    tables = [(table, columns_of(table.names, {**stated.columns, **rates})) for table, rates in every]
    require_stated_columns(path, [table for table, _ in tables], stated)
    useful: dict[Path, list[tuple[TextTable, Columns]]] = {}
    for table, columns in tables:
        if _has_figures(columns):
            require_ranks_of_a_job(table, columns, stated)
            useful.setdefault(table.source, []).append((table, columns))
    if not useful:
        raise unreadable(path, tables)
    lines: list[TableLine] = []
    collectives: list[CommRow] = []
    notes: list[str] = []
    damaged: list[DataError] = []
    for file, pairs in list(useful.items()):
        try:
            measured = [comm_rows_of(table, columns) for table, columns in pairs if columns.has("op")]
            more = [line for table, columns in pairs if not columns.has("op") for line in lines_of(table, columns)]
            runs_of(more)
        except DataError as error:
            if not source.is_folder:
                raise
            damaged.append(error)
            reason = f"{error.what}: {error.why}" if error.why else error.what
            left_out = (*left_out, LeftOut(path=str(file), reason=reason))
            del useful[file]
            continue
        lines += more
        collectives += [row for rows, _ in measured for row in rows]
        notes += [note for _, dropped in measured for note in dropped]
    if not lines and not collectives:
        if damaged:
            raise damaged[0]
        raise DataError(f"{path}: no rows under the header", fix="pass the file of a run with results")
    read = [pair for pairs in useful.values() for pair in pairs]
    runs = runs_of(lines)
    unclear = [f"{table.source.name}: {why}" for table, columns in read for why in columns.unclear.values()]
    weak = any(run.scaling == "weak" and run.epochs and run.samples_per_s is None for run in runs)
    hardware = sorted({run.hardware for run in runs if run.hardware})
    remarks = [
        f"{run.run_id if run.epochs else path.name}: {note}"
        for run in runs
        if run.epochs or run.samples_per_s
        for note in run.notes
    ]
    return Imported(
        format="table",
        path=str(path),
        runs=with_stated(runs, stated),
        comm_rows=tuple(collectives),
        hardware=", ".join(hardware) if 0 < len(hardware) < 4 else None,
        notes=(
            *dict.fromkeys(unclear),
            *[_NO_SAMPLES] * weak,
            *notes,
            *(note for table, _ in read for note in table.notes),
        ),
        remarks=(*dict.fromkeys(remarks), *[_AS_GIB] * any(columns.has("peak_memory") for _, columns in read)),
        left_out=left_out,
        columns=tuple(dict.fromkeys(name for table, _ in tables for name in table.names)),
    )


IMPORTER = Importer(
    title="table of results (CSV, Markdown, JSON records)",
    suffixes=(".csv", ".tsv", ".md", ".markdown", ".json", ".jsonl", ".ndjson", ".txt"),
    recognises=_may_be_table,
    read_files=_read_tables_of_runs,
    rank=95,
)
