"""Any table of results: CSV, TSV, Markdown or JSON records, a row a run, an epoch, or a size of a collective.

Columns are recognised by the names and units that people give them (``_columns``); others are stated with ``--columns``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from stepscope.core.errors import DataError, UsageError
from stepscope.core.suggest import did_you_mean, unknown
from stepscope.records.comm import CommRow
from stepscope.records.imported import Imported, Stated
from stepscope.records.run import Status
from stepscope.records.training import Epoch, Measured, TrainingRun
from stepscope.store.importer import Candidate, Importer
from stepscope.store.importers._collectives import BUS_FACTORS
from stepscope.store.importers._columns import (
    COUNTS,
    NAMES,
    SIZES,
    TIMES,
    Columns,
    columns_of,
    is_gpu_count,
    meanings_of,
    plain,
)
from stepscope.store.importers._comm_table import comm_rows_of
from stepscope.store.importers._folders import LOOKED_AT, holds_traces, is_about, read_each
from stepscope.store.importers._tables import Row, Table, headers, number, read_tables
from stepscope.store.importers._training import (
    label,
    measured,
    require_agreement,
    slug,
    with_own_baselines,
    with_unique_ids,
)
from stepscope.store.stated import with_stated

SUFFIXES = (".csv", ".tsv", ".md", ".markdown", ".json", ".jsonl", ".ndjson")
MOST_JSON_BYTES = 4 << 20
"""A larger JSON document is not looked at to find out whether it holds records."""

_FOREIGN_JSON = re.compile(r'"(?:traceEvents|ph|schemaVersion|deviceProperties|schema)"\s*:')
_KEY = re.compile(r'"([^"\\]{1,60})"\s*:')
_FIGURES = ("step_ns", "steps_per_s", "samples_per_s", "epoch_ns", "peak_memory")
_RESULTS = ("train_loss", "validation_loss", "train_accuracy", "validation_accuracy")
_TIMED = ("step_ns", "steps_per_s", "samples_per_s", "epoch_ns", "time_ns")
_KEYS = (
    "world_size",
    "strategy",
    "model",
    "hardware",
    "run",
    "micro_batch",
    "global_batch",
    "batch_size",
    "epoch",
    "op",
)
_MISSING = ("", "-", "–", "—", "n/a", "na", "none", "null", "?")
_NOT_FINITE = ("nan", "inf", "-inf", "+inf", "infinity", "-infinity")
_FINISHED = (
    "ok",
    "success",
    "succeeded",
    "successful",
    "pass",
    "passed",
    "done",
    "finished",
    "completed",
    "complete",
    "true",
)
_NO_MEMORY = re.compile(r"\b(?:oom|out.?of.?memory|cuda out)\b", re.I)
_NO_GROUP = re.compile(
    r"(?:^|_)(?:notes?|comments?|remarks?|description|timestamp|command|path|file|url|fingerprint|hash|sha\d*)$"
)
_AN_ID = re.compile(r"[0-9a-f]{12,}|\d{4}-\d\d-\d\d[T ]\d\d:.*|.{41,}|.*[/\\].*", re.I)
_WIDE = 3
_SOME = 3
_SETTINGS = 60
_TEXT = 80
_MEANINGS = (
    "step_time_ms",
    "step_time_s",
    "epoch_time_s",
    "tokens_per_s",
    "images_per_s",
    "peak_memory_gib",
    "time_us",
)
_ROUNDED = 0.02
_AS_GIB = "memory in MB and GB is taken as MiB and GiB, as torch and nvidia-smi print it"
_NO_SAMPLES = (
    "weak scaling, and no column says how many samples an epoch has: --columns NAME=dataset_size gives speed-ups"
)
_KNOWN = "world_size, strategy, model, step_time_ms, tokens_per_s, epoch_time_s, peak_memory_gib"
_LONG = "write a row a run as CSV, with columns such as gpus,model,samples_per_s"


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
        return any(_useful(columns_of(names, stated)) for names in headers(suffix, candidate.text))
    if not _is_table(candidate) or not _small(candidate):
        return False
    try:
        return any(_useful(columns_of(table.names, stated)) for table in read_tables(candidate.path))
    except DataError:
        return False


def _useful(columns: Columns) -> bool:
    figures = columns.has(*_FIGURES) or (columns.has("time_ns") and columns.has("epoch", "op"))
    return (figures or (columns.has("epoch") and columns.has(*_RESULTS))) and columns.has(*_KEYS)


def _read(path: Path, stated: Stated) -> Imported:
    known = any(_knows(Candidate(each, stated)) for each in Candidate(path).files)

    def look(each: Candidate) -> bool:
        candidate = Candidate(each.path, stated)
        return _knows(candidate) if known else _is_table(candidate) and not is_about(each.path)

    parts, notes = read_each(path, look, read_tables, suffixes=SUFFIXES)
    tables = [(table, columns_of(table.names, stated.columns)) for part in parts for table in part]
    _require_stated_columns(path, [table for table, _ in tables], stated)
    useful = [(table, columns) for table, columns in tables if _useful(columns)]
    if not useful:
        raise _unreadable(path, tables)
    comm: list[CommRow] = []
    for table, columns in useful:
        if columns.has("op"):
            rows, left_out = comm_rows_of(table, columns)
            comm += rows
            notes = (*notes, *left_out)
    lines = [_Line(table, row, columns) for table, columns in useful if not columns.has("op") for row in table.rows]
    if not lines and not comm:
        raise DataError(f"{path}: no rows under the header", why="nothing was measured", fix="copy the file again")
    return _imported(path, lines, comm, useful, notes, stated)


def _imported(
    path: Path,
    lines: list[_Line],
    comm: list[CommRow],
    useful: list[tuple[Table, Columns]],
    notes: tuple[str, ...],
    stated: Stated,
) -> Imported:
    kinds = _kinds_of(lines)
    runs = [_run(members, kinds) for members in _by_run(lines, kinds)]
    unclear = [f"{table.source.name}: {why}" for table, columns in useful for why in columns.unclear.values()]
    memory = any(columns.has("peak_memory") for _, columns in useful)
    hardware = sorted({run.hardware for run in runs if run.hardware})
    if any(run.scaling == "weak" and run.epochs and run.samples_per_s is None for run in runs):
        notes = (_NO_SAMPLES, *notes)
    return Imported(
        format="table",
        path=str(path),
        runs=with_stated(_with_scaling(with_own_baselines(with_unique_ids(runs))), stated),
        comm_rows=tuple(comm),
        hardware=", ".join(hardware) if 0 < len(hardware) < 4 else None,
        notes=(*([_AS_GIB] if memory else []), *dict.fromkeys(unclear), *notes),
    )


def _require_stated_columns(path: Path, tables: Sequence[Table], stated: Stated) -> None:
    """Raises UsageError where no table has any of the columns that the user names, or what one means is not known."""
    for name, meaning in stated.columns.items():
        if meaning != "-" and all(each.scale is None for each in meanings_of(meaning)):
            known = [first for names in NAMES.values() for first in names.split()[:1]]
            raise UsageError(unknown("meaning", meaning, [*known, *_MEANINGS]), fix=f"--columns {name}=MEANING")
    names = [name for table in tables for name in table.names]
    present = {plain(name) for name in names}
    absent = [name for name in stated.columns if plain(name) not in present]
    if absent and len(absent) == len(stated.columns):
        guess = did_you_mean(absent[0], names)
        raise UsageError(
            f"--columns: {path} has no column {absent[0]!r}" + (f"; did you mean {guess!r}?" if guess else ""),
            why=f"there are: {', '.join(dict.fromkeys(names))}",
            fix="name a column as the header has it",
        )


def _unreadable(path: Path, tables: Sequence[tuple[Table, Columns]]) -> DataError:
    """Which columns were found, and what to type or to write so that the table can be read."""
    if not tables:
        return DataError(f"{path}: no table in it", fix="pass a file with a table: CSV, TSV, Markdown, JSON records")
    table, columns = max(tables, key=lambda each: len(each[1].by_role))
    found = ", ".join(name for name in table.names[:20] if name) + (", ..." if len(table.names) > 20 else "")
    by_ranks = [name for name in table.names if is_gpu_count(name)]
    if len(by_ranks) > 1:
        return DataError(
            f"{path}: a column a number of ranks ({', '.join(by_ranks)})",
            why="a row holds several runs, and what the figures are is not said",
            fix=_LONG,
        )
    figures = {role: table.names[at] for role, (at, _) in columns.by_role.items() if role in (*_FIGURES, "time_ns")}
    times = [table.names[i] for i in columns.unclear if meanings_of(table.names[i])[0].role == "time_ns"]
    figures |= {"time_ns": times[0]} if times else {}
    free = [table.names[i] for i in (*columns.unclear, *columns.others) if table.names[i]]
    lacks, example = "no column is a time or a throughput", f"{free[-1] if free else 'NAME'}=samples_per_s"
    if columns.has("size") and columns.has("time_ns"):
        lacks, example = "no column names the collective", f"{_naming_an_op(table) or 'NAME'}=op"
    elif "time_ns" in figures:
        lacks = f"{figures['time_ns']!r} may be the time of a step, of an epoch or of a whole run"
        example = f"{figures['time_ns']}=epoch_time_s"
    elif figures:
        lacks, example = "no column says what a run is", f"{free[0] if free else 'NAME'}=world_size"
    state = f"say what a column is: --columns {example} (or {_KNOWN}; of collectives op, size_bytes and time_us)"
    wide = len([i for i in columns.others if all(number(row.cells[i]) for row in table.rows)]) >= _WIDE
    return DataError(
        f"{path}: which column is what?",
        why=f"{'; '.join([lacks, *columns.unclear.values()])}; the columns are: {found}",
        fix=f"{_LONG}; or {state}" if wide and not figures else f"{state}; or {_LONG}",
    )


def _naming_an_op(table: Table) -> str | None:
    """A column in whose first row the name of a collective stands."""
    cells = zip(table.names, table.rows[0].cells if table.rows else (), strict=False)
    return next((name for name, text in cells if any(op in text for op in BUS_FACTORS)), None)


@dataclass(frozen=True, slots=True)
class _Line:
    """One row with the meaning of its columns."""

    table: Table
    row: Row
    columns: Columns

    def cell(self, role: str) -> str:
        """The text of a column; empty: unknown, or no such column."""
        place = self.columns.by_role.get(role)
        text = "" if place is None else self.row.cells[place[0]]
        return "" if text.lower() in _MISSING else text

    def name(self, role: str) -> str:
        return self.columns.names[self.columns.by_role[role][0]]

    def text(self, role: str) -> str | None:
        """None where it is unknown."""
        return self.cell(role) or None

    def amount(self, role: str) -> float | None:
        """A number of 0 or more in base units. Raises DataError for anything else."""
        value = self.value(role)
        if value is not None and value < 0:
            raise self.wrong(role, "a number, 0 or more")
        return value

    def value(self, role: str) -> float | None:
        """A number in base units. Raises DataError for what is none."""
        text = self.cell(role)
        if not text:
            return None
        found, meaning = number(text), self.columns.by_role[role][1]
        scale = meaning.scale if found is not None and not found[1] else None
        if found is not None and found[1]:
            scale = _cell_scale(role, found[1], own=meaning.unit)
        if found is None or scale is None:
            raise self.wrong(role, "a number")
        return found[0] * scale

    def count(self, role: str) -> int | None:
        """A whole number of 1 or more. Raises DataError for anything else."""
        text = self.cell(role)
        found = number(text) if text else None
        if not text:
            return None
        if found is None or found[1] or found[0] != int(found[0]) or not 1 <= found[0] < 2**53:
            raise self.wrong(role, "a whole number of 1 or more")
        return int(found[0])

    def wrong(self, role: str, expected: str) -> DataError:
        return self.row.wrong(self.columns.by_role[role][0], self.name(role), expected)


def _cell_scale(role: str, unit: str, *, own: str) -> float | None:
    """Of a unit written in the cell, ``12.3 ms``; it counts more than the header's."""
    if role in ("step_ns", "epoch_ns", "time_ns"):
        return TIMES.get(unit)
    if role == "peak_memory":
        return SIZES.get(unit)
    if role.endswith("accuracy") and unit == "%":
        return 0.01
    if role == "parameters":
        return COUNTS.get(unit)
    return 1.0 if unit == own else None


@dataclass(frozen=True, slots=True)
class _Kinds:
    """What tells kinds of runs apart, which are not compared. names: columns of unknown meaning. hardware: it varies."""

    names: tuple[str, ...]
    hardware: bool

    def texts(self, line: _Line) -> tuple[str, ...]:
        return tuple(_of(line, name) for name in self.names)


def _kinds_of(lines: Sequence[_Line]) -> _Kinds:
    """Texts that vary, unless each row has its own (an id, a time), or the strategy alone decides it."""
    values: dict[str, list[str]] = {}
    for line in lines:
        for index in line.columns.others:
            name = line.columns.names[index]
            if name not in line.table.nested and not _NO_GROUP.search(plain(name)):
                values.setdefault(name, [])
    for name, found in values.items():
        found += [_of(line, name) for line in lines]
    strategies = [line.cell("strategy") for line in lines]
    names = tuple(
        name
        for name, found in values.items()
        if len(set(found)) > 1
        and any(_is_word(text) for text in found)
        and not (len(set(found)) == len(lines) and any(_AN_ID.fullmatch(text) for text in found))
        and len(set(zip(strategies, found, strict=True))) > len(set(strategies))
    )
    return _Kinds(names, len({line.cell("hardware") for line in lines}) > 1)


def _is_word(text: str) -> bool:
    found = number(text)
    return text.lower() not in (*_MISSING, *_NOT_FINITE) and (found is None or bool(found[1].strip("%x/s")))


def _by_run(lines: Sequence[_Line], kinds: _Kinds) -> list[list[_Line]]:
    """Rows of one run: each is one, unless the table has epochs."""
    found: dict[object, list[_Line]] = {}
    for line in lines:
        by_epoch = line.columns.has("epoch")
        key: object = (id(line.table), _identity(line, kinds)) if by_epoch else id(line.row)
        found.setdefault(key, []).append(line)
    return list(found.values())


def _identity(line: _Line, kinds: _Kinds) -> tuple[str, ...]:
    roles = (
        "model",
        "strategy",
        "hardware",
        "precision",
        "run",
        "micro_batch",
        "global_batch",
        "batch_size",
        "world_size",
    )
    return (*(line.cell(role) for role in roles), *kinds.texts(line))


def _of(line: _Line, name: str) -> str:
    return line.row.cells[line.columns.names.index(name)] if name in line.columns.names else ""


def _run(members: Sequence[_Line], kinds: _Kinds) -> TrainingRun:
    line = members[0]
    status, error = _status(line)
    ok = status == "ok"
    world_size, strategy = line.count("world_size"), line.text("strategy")
    micro, accumulation = line.count("micro_batch"), line.count("accumulation")
    steps = line.count("steps") if line.columns.has("steps") else None
    epochs = _epochs(members) if line.columns.has("epoch") and ok else ()
    size = _same(members, "dataset_size")
    epoch_ns = fmean(e.duration_ns for e in epochs if e.duration_ns) if any(e.duration_ns for e in epochs) else None
    epoch_ns = epoch_ns or (line.amount("epoch_ns") if ok else None)
    step_ns, rate, rate_unit = _step_ns(line) if ok else None, *_rate(line, world_size, ok=ok)
    if rate is None and size is not None and epoch_ns:
        rate, rate_unit = size * 1e9 / epoch_ns, "samples"
    batch, sequence = _batch(line, world_size, step_ns, rate, rate_unit)
    memory = line.amount("peak_memory") if ok else None
    accuracy = None if epochs else _accuracy(line)
    n = len(epochs) or steps
    hardware, device = line.text("hardware"), line.text("device")
    hardware = hardware if hardware is not None and _is_word(hardware) else None
    return TrainingRun(
        run_id=_run_id(line, kinds),
        label=label(strategy, world_size, *([f"{micro} a rank"] if micro else [])),
        group=_group(line, kinds, sequence),
        source=line.row.where,
        status=status,
        error=error,
        world_size=world_size,
        model=line.text("model"),
        dataset=line.text("dataset"),
        dataset_size=size,
        strategy=strategy,
        precision=_precision(line),
        accumulation=accumulation,
        micro_batch=micro,
        global_batch=batch,
        scaling=_scaling(members),
        device=None if device is None else device.partition(":")[0],
        backend=line.text("backend"),
        hardware=hardware,
        num_parameters=_whole(line.amount("parameters")),
        step_ns=measured(step_ns, n=steps),
        epoch_ns=None if epochs or epoch_ns is None else Measured(value=epoch_ns),
        epoch_estimated=False if epoch_ns is not None else None,
        samples_per_s=measured(rate, n=n),
        unit=rate_unit,
        epochs=epochs,
        train_loss=_loss(members[-1], "train_loss") if ok else None,
        test_accuracy=accuracy,
        peak_memory_bytes=_whole(memory),
        settings=_settings(line, sequence),
        missing={} if world_size is not None else {"world_size": "no column says on how many ranks it ran"},
    )


def _status(line: _Line) -> tuple[Status, str | None]:
    """Of a status column, else of words and zeros where a figure should be."""
    state = line.text("status")
    if state is not None and state.lower() not in _FINISHED:
        return "oom" if _NO_MEMORY.search(state) else "error", state
    figures = [line.cell(role) for role in _TIMED if line.columns.has(role)]
    word = next((text for text in figures if text and not any(c.isdigit() for c in text)), None)
    if word is not None and word.lower() not in _NOT_FINITE:
        return "oom" if _NO_MEMORY.search(word) else "error", f"the table says {word!r}"
    numbers = [number(text) for text in figures if text]
    if figures and not numbers and not line.cell("peak_memory"):
        return "error", "the table has no figure of it"
    if any(found is not None and found[0] == 0 for found in numbers):
        return "error", "0 in the table: failed or not run"
    return "ok", None


def _step_ns(line: _Line) -> float | None:
    per_s = line.amount("steps_per_s")
    return line.amount("step_ns") or (1e9 / per_s if per_s else None)


def _rate(line: _Line, world_size: int | None, *, ok: bool) -> tuple[float | None, str]:
    """(throughput of all ranks, what it counts)."""
    if not line.columns.has("samples_per_s"):
        return None, "samples"
    meaning = line.columns.by_role["samples_per_s"][1]
    unit, value = meaning.item or "items", line.amount("samples_per_s") if ok else None
    if value is None or not meaning.per_rank:
        return value, unit
    return (None if world_size is None else value * world_size), unit


def _batch(
    line: _Line, world_size: int | None, step_ns: float | None, rate: float | None, unit: str
) -> tuple[int | None, int | None]:
    """(global batch, sequence length), checked against each other and against step time and throughput.

    Without a column for it, the global batch is that of a rank times the ranks where the throughput confirms it.
    """
    batch, sequence = line.count("global_batch"), line.count("sequence_length")
    micro, accumulation = line.count("micro_batch"), line.count("accumulation")
    if batch is None and world_size == 1 and accumulation in (None, 1):
        batch = micro or line.count("batch_size")
    if batch is not None and micro is not None and world_size is not None and line.columns.has("global_batch"):
        ranks = micro * world_size * (accumulation or 1)
        if batch != ranks and (accumulation is not None or batch % ranks):
            raise line.wrong("global_batch", f"{line.name('micro_batch')} x {line.name('world_size')} = {ranks}")
    per_item = sequence if unit == "tokens" else 1
    if step_ns is None or rate is None or per_item is None:
        return batch, sequence
    if batch is None and micro is not None and world_size is not None:
        batch = micro * world_size * (accumulation or 1)
        agrees = abs(rate * step_ns / 1e9 / (batch * per_item) - 1) <= _ROUNDED
        if not agrees and accumulation is None:
            return None, sequence
    if batch is not None:
        require_agreement(
            line.row.where,
            line.name("samples_per_s"),
            stated=rate,
            derived=batch * per_item / step_ns * 1e9,
            formula=f"{batch * per_item} {unit} of a step / its time",
            tolerance=_ROUNDED,
        )
    return batch, sequence


def _epochs(members: Sequence[_Line]) -> tuple[Epoch, ...]:
    """Raises DataError for an epoch that stands twice."""
    seen: dict[int, _Line] = {}
    for line in members:
        value = line.value("epoch")
        if value is None or value < 0 or value != int(value):
            raise line.wrong("epoch", "the number of an epoch")
        if int(value) in seen:
            raise DataError(
                f"{line.row.where}: epoch {int(value)} a second time",
                why=f"{seen[int(value)].row.where} has it already: two runs, or a column tells them apart that is not known",
                fix="keep the rows of one run, or name the column: --columns NAME=run",
            )
        seen[int(value)] = line
    _refuse_clock([line for _, line in sorted(seen.items())])
    return tuple(
        Epoch(
            number=at,
            duration_ns=line.amount("epoch_ns") or line.amount("time_ns"),
            train_loss=_loss(line, "train_loss"),
            train_accuracy=_fraction(line, "train_accuracy"),
            validation_loss=_loss(line, "validation_loss"),
            validation_accuracy=_fraction(line, "validation_accuracy"),
            samples_per_s=line.amount("samples_per_s"),
        )
        for at, line in sorted(seen.items())
    )


def _refuse_clock(lines: Sequence[_Line]) -> None:
    """A column ``time`` that only grows, past twice its beginning, is likely to count from the start of the training."""
    if not lines[0].columns.has("time_ns") or lines[0].columns.has("epoch_ns"):
        return
    times = [line.amount("time_ns") or 0.0 for line in lines]
    if len(times) > _SOME and all(a < b for a, b in pairwise(times)) and times[-1] > 2 * times[0]:
        name = lines[0].name("time_ns")
        raise DataError(
            f"{lines[-1].row.where}: {name} grows from epoch to epoch",
            why="it may count from the start of the training, and then it is not the time of an epoch",
            fix=f"--columns {name}=epoch_time_s if each is of one epoch, --columns {name}=- to leave it out",
        )


def _accuracy(line: _Line) -> float | None:
    return _fraction(line, "validation_accuracy")


def _fraction(line: _Line, role: str) -> float | None:
    """Accuracies above 1 are in per cent."""
    value = line.amount(role)
    if value is None or value <= 1:
        return value
    if value > 100:
        raise line.wrong(role, "a fraction, or per cent")
    return value / 100


def _loss(line: _Line, role: str) -> float | None:
    """A loss may be NaN: the training diverged, and there is no figure."""
    return None if line.cell(role).lower() in _NOT_FINITE else line.value(role)


def _same(members: Sequence[_Line], role: str) -> int | None:
    """A count that all rows of a run share. Raises DataError where they differ."""
    values = [line.count(role) for line in members]
    if len(set(values)) > 1:
        raise members[-1].wrong(role, f"{values[0]}, as in the other rows of this run")
    return values[0]


def _scaling(members: Sequence[_Line]) -> Any:
    """``weak`` or ``strong`` where a column of the table says nothing else."""
    line = members[0]
    words = {line.row.cells[i].lower() for i in line.columns.others}
    found = words & {"weak", "strong"}
    return found.pop() if len(found) == 1 else None


def _with_scaling(runs: Sequence[TrainingRun]) -> tuple[TrainingRun, ...]:
    """What is kept as ranks are added: also by the sizes of data sets. Where only epochs are timed it has to be known."""
    by_id = {run.run_id: run for run in runs}
    found = []
    for run in runs:
        base = by_id.get(run.baseline_id or "")
        new = run
        if base is not None and base is not run and run.scaling is None and run.dataset_size and base.dataset_size:
            grown = run.dataset_size * (base.world_size or 1) == base.dataset_size * (run.world_size or 1)
            new = replace(run, scaling="strong" if run.dataset_size == base.dataset_size else "weak" if grown else None)
        timed = run.epoch_ns is not None and run.samples_per_s is None and run.step_ns is None
        if timed and new.scaling is None and base is not None:
            why = "only epochs are timed, and no column says how many samples one has"
            new = replace(new, missing={**new.missing, "scaling": why})
        found.append(new)
    return tuple(found)


def _run_id(line: _Line, kinds: _Kinds) -> str:
    """The file's name for its only record; else the run's own name, else what tells the rows of the table apart."""
    stem = line.table.source.stem
    if line.table.single:
        return stem
    name = line.text("run")
    if name is not None:
        return slug(name) or stem
    parts = []
    for role, prefix in _ID_PARTS:
        if len({_Line(line.table, row, line.columns).cell(role) for row in line.table.rows}) > 1:
            parts.append(f"{prefix}{line.cell(role)}")
        if role == "hardware":
            parts += [_of(line, name) for name in kinds.names if _varies(line.table, name)]
    return f"{stem}-{slug(*parts)}" if slug(*parts) else stem


def _varies(table: Table, name: str) -> bool:
    return name in table.names and len({row.cells[table.names.index(name)] for row in table.rows}) > 1


_ID_PARTS = (
    ("model", ""), ("strategy", ""), ("hardware", ""), ("precision", ""), ("global_batch", "gb"), ("batch_size", "b"),
    ("micro_batch", "b"), ("world_size", ""),
)  # fmt: skip


def _group(line: _Line, kinds: _Kinds, sequence: int | None) -> str:
    texts = [line.text("model"), line.text("dataset"), _precision(line)]
    texts += [f"sequences of {sequence}" if sequence else None]
    texts += [*kinds.texts(line), line.text("hardware") if kinds.hardware else None]
    return ", ".join(text for text in texts if text) or line.table.source.stem


def _settings(line: _Line, sequence: int | None) -> dict[str, Any]:
    """What else the row says, as plain values."""
    found: dict[str, Any] = {} if sequence is None else {"sequence_length": sequence}
    if batch := line.text("batch_size"):
        found["batch_size"] = _plain_value(batch)
    for index in line.columns.others:
        text = line.row.cells[index]
        if text and len(text) <= _TEXT and len(found) < _SETTINGS and text.lower() not in _NOT_FINITE:
            found.setdefault(line.columns.names[index], _plain_value(text))
    return found


def _plain_value(text: str) -> Any:
    value = number(text)
    if value is None or value[1]:
        return text
    return int(value[0]) if value[0] == int(value[0]) and "." not in text else value[0]


def _precision(line: _Line) -> str | None:
    text = line.text("precision")
    return {"true": "amp", "false": None}.get(text.lower(), text) if text else None


def _whole(value: float | None) -> int | None:
    return None if not value else round(value)


IMPORTER = Importer(title="table of results (CSV, Markdown, JSON records)", recognises=_recognises, read=_read, rank=95)
