"""What is said of a table that cannot be read: which columns were found, and what to type or to write."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from stepscope.core.bus_factor import BUS_FACTORS
from stepscope.core.errors import DataError
from stepscope.core.words import listed
from stepscope.records.imported import Stated
from stepscope.store.importers._columns import FIGURES, TIMES, Columns, is_gpu_count, meanings_of
from stepscope.store.importers._stated_columns import require_meanings
from stepscope.store.importers._tables import TextTable, number
from stepscope.store.stated_columns import absent_columns, no_such_column, plain

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
    """Raises UsageError where no table has any of the columns that the user names, or what one means is not known.

    One of several may be another source's: ``results.missing`` finds those that nothing has.
    """
    require_meanings(stated)
    names = [name for table in tables for name in table.names]
    absent = absent_columns(names, stated)
    if absent and len(absent) == len(stated.columns):
        raise no_such_column(absent[0], names, path)


def require_ranks_of_a_job(table: TextTable, columns: Columns, stated: Stated) -> None:
    """Raises DataError for one number of GPUs beside several numbers of nodes: it may be that of a node."""
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
    """Which columns were found, and what to type or to write so that the table can be read."""
    if not tables:
        return DataError(f"{path}: no table in it", fix="pass a file with a table: CSV, TSV, Markdown, JSON records")
    table, columns = max(tables, key=lambda each: len(each[1].by_role))
    found = ", ".join(name for name in table.names[:20] if name) + (", ..." if len(table.names) > 20 else "")
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
    unnamed = [each for each in free if _TIMED.search(plain(each))]
    series = next((each for each in _series(free) if len(each) >= _WIDE), [])
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
        example = f"{series[0]}={_like(series[0])}"
    elif unnamed:
        which = "is a time or a rate" if len(unnamed) == 1 else "are times or rates"
        lacks = f"{listed(unnamed, at_most=4)} {which}, and no name says that it is of a step or an epoch"
        example = f"{name if name in unnamed else 'NAME'}={_like(unnamed[0])}"
    state = f"state what a column is: --columns {example} (or {KNOWN}; of collectives op, size_bytes and time_us)"
    long = _SERIES if series else LONG
    if not series and (columns.has(*_OF_A_RUN) or (unnamed and columns.has("world_size"))):  # a row is a run already
        long = "add a column such as step_time_ms or samples_per_s"
    wide = len([i for i in columns.others if all(number(row.cells[i]) for row in table.rows)]) >= _WIDE
    return DataError(
        f"{path}: which column is what?",
        why=f"{'; '.join([lacks, *columns.unclear.values()])}; the columns are: {found}",
        fix=f"{long}; or {state}" if wide and not (figures or unnamed or columns.unclear) else f"{state}; or {long}",
    )


def _series(names: Sequence[str]) -> list[list[str]]:
    """Names of times and rates that count on: ``step_1_ms``, ``step_2_ms``; percentiles do not."""
    found: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        numbers = re.findall(r"\d{1,9}", name)
        if len(numbers) == 1 and _TIMED.search(plain(name)):
            found.setdefault(re.sub(r"\d+", "#", plain(name)), []).append((int(numbers[0]), name))
    return [[n for _, n in each] for each in found.values() if all(b - a == 1 for (a, _), (b, _) in pairwise(each))]


def _like(name: str) -> str:
    """A name that the vocabulary knows, in the unit of a time or a rate of another name."""
    last = plain(name).rpartition("_")[2]
    what = "epoch_time" if "epoch" in plain(name) else "step_time"
    return f"{what}_{last if last in TIMES else 's'}" if _TIME_WORD.search(plain(name)) else "samples_per_s"


def _naming_an_op(table: TextTable) -> str | None:
    """A column in whose first row the name of a collective stands."""
    cells = zip(table.names, table.rows[0].cells if table.rows else (), strict=False)
    return next((name for name, text in cells if any(op in text for op in BUS_FACTORS)), None)
