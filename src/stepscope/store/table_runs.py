"""Rows of a table of results as training runs: groups, epochs, batches, scaling."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, NamedTuple

from stepscope.core.errors import DataError
from stepscope.core.words import counted, grouped, in_words
from stepscope.records.nouns import Measured, Status
from stepscope.records.training import Epoch, TrainingRun
from stepscope.stats.order import MIN_RUNS, mean_interval
from stepscope.store.columns import REPEATS, number, plain
from stepscope.store.epoch_table import is_clock, own_times
from stepscope.store.tables import (
    NOT_FINITE,
    TableLine,
    TextTable,
    fraction,
    is_word,
    loss,
    of,
    plain_value,
    whole,
)
from stepscope.store.training_runs import (
    first_runs,
    label,
    measured,
    require_agreement,
    slug,
    with_own_scaling,
    with_unique_ids,
)

_TIMED = ("step_ns", "steps_per_s", "samples_per_s", "epoch_ns", "time_ns")
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
_BROKEN_OFF = ("running", "killed", "interrupted", "cancelled", "canceled", "preempted", "stopped")
_NO_MEMORY = re.compile(r"\b(?:oom|out.?of.?memory|cuda out)\b", re.I)
_NO_GROUP = re.compile(
    r"(?:^|_)(?:notes?|comments?|remarks?|description|timestamp|command|path|file|url|fingerprint|hash|sha\d*|"
    r"row_?id|uuid|index|row)$"
)
_A_NAME = re.compile(r"(?:^|_)(?:commit|hash|sha\d*|revision|build|job_?id)$")
"""Columns whose digits name something: 0000012 is no 12, 1e5 no 100000."""
_WHEN = re.compile(r"(?:^|_)(?:date|day|night|timestamp)$")
_A_DATE = re.compile(r"\d{4}-\d\d-\d\d.*|\d{8}")
_AN_ID = re.compile(r"[0-9a-f]{12,}|\d{4}-\d\d-\d\d[T ]\d\d:.*|.{41,}|.*[/\\].*", re.I)
_SETTINGS = 60
_TEXT = 80
_ROUNDED = 0.02
_SAME_WORK = 0.05
"""Relative difference up to which samples of rows are the same: rates are means of rounded figures."""


def runs_of(lines: Sequence[TableLine]) -> tuple[TrainingRun, ...]:
    """Make one run of each row, or of the rows of its epochs; scaling as far as the rows tell. Raises DataError."""
    kinds = _kinds_of(lines)
    by_run = _by_run(lines, kinds)
    runs = [
        _table_run(members, kinds)
        if len(members) == 1 or members[0].columns.has("epoch")
        else _of_repeats(members, kinds)
        for members in by_run
    ]
    rated = _with_rates_of_all(runs, [members[0] for members in by_run])
    return _runs_with_scaling(with_own_scaling(with_unique_ids(rated)))


def _with_rates_of_all(runs: Sequence[TrainingRun], lines: Sequence[TableLine]) -> list[TrainingRun]:
    """Return runs with the rates of all ranks, where a column's are of one process, as its times show.

    Rate x time x ranks is the same in every row: the same samples, and each process counts its own share of them.
    """
    of_work: dict[object, list[int]] = {}
    for index, (run, line) in enumerate(zip(runs, lines, strict=True)):
        if run.status == "ok" and run.samples_per_s is not None and run.world_size and not run.epochs:
            of_work.setdefault((id(line.table), run.model, run.dataset, run.precision, run.hardware), []).append(index)
    of_all = list(runs)
    for members in of_work.values():
        rated = [
            (run.world_size or 1, rate)
            for run in map(runs.__getitem__, members)
            if (rate := run.samples_per_s) is not None
        ]
        least = min(world for world, _ in rated)
        if max(world for world, _ in rated) < 2 * least:
            continue
        works = (
            [rate.value * time * world for time, (world, rate) in zip(times, rated, strict=True)]
            for times in _times_of([lines[index] for index in members])
        )
        work = next((one for one in works if max(one) <= min(one) * (1 + _SAME_WORK)), None)
        if work is None:
            continue
        sums = dict(sorted((world, rate.value * world) for world, rate in rated))
        listed_sums = in_words(f"{total:.3g} on {counted(world, 'rank')}" for world, total in sums.items())
        gains = in_words(f"{total / sums[least]:.2f}x" for world, total in sums.items() if world > least)
        note = (
            f"{lines[members[0]].name('samples_per_s')} is the rate of one process: rate x time x ranks is "
            f"{fmean(work):.4g} in every row; the job's is the sum: {listed_sums} ({gains})"
        )
        for index, (world, rate) in zip(members, rated, strict=True):
            of_all[index] = replace(runs[index], samples_per_s=rate.times(world), notes=(*runs[index].notes, note))
    return of_all


_A_TIME = re.compile(r"time|dur|elapsed|wall|(?:^|_)(?:s|secs?|seconds|min|minutes|h|hours)$")


def _times_of(lines: Sequence[TableLine]) -> Iterator[list[float]]:
    """Yield the figures of each column of times that every row has, whatever is timed."""
    for name in lines[0].columns.names:
        if _A_TIME.search(plain(name)) and not plain(name).endswith("per_s"):
            parsed = [number(of(line, name)) for line in lines]
            times = [value[0] for value in parsed if value is not None and value[0] > 0]
            if len(times) == len(lines):
                yield times


@dataclass(frozen=True, slots=True)
class _Kinds:
    """What tells kinds of runs apart, which are not compared. names: columns of unknown meaning. hardware: it varies.

    when: the column that says on which day a run was made, where runs are of several.
    """

    names: tuple[str, ...]
    hardware: bool
    when: str | None = None

    def day(self, line: TableLine) -> str:
        """Return the day of a row, as it is written; empty where rows are of one day."""
        return "" if self.when is None else of(line, self.when)

    def texts(self, line: TableLine) -> tuple[str, ...]:
        """Return the texts of a row; what a split of the model is, with its column's name: ``tp 4``."""
        cells = [(name, of(line, name)) for name in self.names]
        return tuple(f"{name} {text}" if text and plain(name) in SPLIT else text for name, text in cells)


def _kinds_of(lines: Sequence[TableLine]) -> _Kinds:
    """Find columns of texts that vary, unless each row has its own (an id, a time), or the strategy alone decides it."""
    others = dict.fromkeys(
        name
        for line in lines
        for name in map(line.columns.names.__getitem__, line.columns.others)
        if name not in line.table.nested and not _NO_GROUP.search(plain(name))
    )
    strategies = [line.cell("strategy") for line in lines]
    names = tuple(
        name
        for name in others
        if len(set(value := [of(line, name) for line in lines])) > 1
        and any(is_word(text) for text in value)
        and not (len(set(value)) == len(lines) and any(_AN_ID.fullmatch(text) for text in value))
        and len(set(zip(strategies, value, strict=True))) > len(set(strategies))
    )
    found_kinds = _Kinds((*names, *_split_columns(lines)), len({line.cell("hardware") for line in lines}) > 1)
    return _kinds_over_days(lines, found_kinds) or found_kinds


def _kinds_over_days(lines: Sequence[TableLine], kinds: _Kinds) -> _Kinds | None:
    """Return ``kinds`` without the columns of day and code, where runs of a kind are of many days (a history), else None."""
    days = (name for name in kinds.names if _WHEN.search(plain(name)))
    when = next((name for name in days if all(_A_DATE.fullmatch(of(line, name)) for line in lines)), None)
    if when is None:
        return None
    rest = tuple(name for name in kinds.names if name != when and not _A_NAME.search(plain(name)))
    without_day = _Kinds(rest, kinds.hardware, when)
    of_kind = grouped(lines, lambda line: _row_identity(line, without_day)[:-1])
    most = max(len(set(map(without_day.day, members))) for members in of_kind.values())
    return without_day if most >= MIN_RUNS else None


def _split_columns(lines: Sequence[TableLine]) -> Iterator[str]:
    """Yield columns of how the model is split, where jobs on as many ranks differ in them: other work for each rank."""
    names = dict.fromkeys(
        name for line in lines for name in line.columns.names if SPLIT.get(plain(name), "data") != "data"
    )
    alike = grouped(lines, lambda line: line.cell("world_size")).values()
    yield from (name for name in names if any(len({of(line, name) for line in jobs} - {""}) > 1 for jobs in alike))


def _by_run(lines: Sequence[TableLine], kinds: _Kinds) -> list[list[TableLine]]:
    """Group the rows of one run: each row is one, unless the table has epochs or repeats."""

    def key(line: TableLine) -> object:
        if line.columns.has("epoch"):
            return id(line.table), _row_identity(line, kinds)
        if any(plain(name) in REPEATS for name in line.table.names):  # a column numbers the samples of one run
            return id(line.table), _row_identity(line, kinds), *map(line.cell, _KEPT_BY_REPEATS)
        return id(line.row)

    return list(grouped(lines, key).values())


_KEPT_BY_REPEATS = ("accumulation", "sequence_length", "dataset", "dataset_size", "backend", "device", "steps")


def _row_identity(line: TableLine, kinds: _Kinds) -> tuple[str, ...]:
    """Return what tells the runs of a table apart."""
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
    return (*(line.cell(role) for role in roles), *kinds.texts(line), kinds.day(line))


def _table_run(members: Sequence[TableLine], kinds: _Kinds) -> TrainingRun:
    """Return the run of its rows, one each epoch. Raises DataError where they contradict each other."""
    line = members[0]
    status, error = _row_end(line)
    ok = status == "ok"
    world_size, strategy = line.count("world_size"), line.text("strategy")
    micro, accumulation = line.count("micro_batch"), line.count("accumulation")
    steps = line.count("steps") if line.columns.has("steps") else None
    epochs, notes = _run_epochs(members, world_size) if line.columns.has("epoch") and ok else ((), ())
    size = _same_count(members, "dataset_size")
    epoch_ns = fmean(e.duration_ns for e in epochs if e.duration_ns) if any(e.duration_ns for e in epochs) else None
    epoch_ns = epoch_ns or (line.amount("epoch_ns") if ok else None)
    step_ns, (rate, of_one, rate_unit) = _row_step_ns(line) if ok else None, _rates_and_unit(line, world_size, ok=ok)
    if rate is None and size is not None and epoch_ns:
        rate, rate_unit = size * 1e9 / epoch_ns, "samples"
    batch, sequence = _batch_and_sequence(line, world_size, step_ns, rate, rate_unit)
    memory = line.amount("peak_memory") if ok else None
    accuracy = None if epochs else fraction(line, "validation_accuracy")
    n = len(epochs) or steps
    hardware, device = line.text("hardware"), line.text("device")
    hardware = hardware if hardware is not None and is_word(hardware) else None
    return TrainingRun(
        run_id=_run_id(line, kinds),
        label=label(strategy, world_size, *([f"{micro} a rank"] if micro else []), *filter(None, [kinds.day(line)])),
        group=_group_name(line, kinds, sequence),
        source=line.row.where,
        status=status,
        error=error,
        world_size=world_size,
        model=line.text("model"),
        dataset=line.text("dataset"),
        dataset_size=size,
        strategy=strategy,
        precision=_row_precision(line),
        accumulation=accumulation,
        micro_batch=micro,
        global_batch=batch,
        scaling=_stated_scaling(members),
        device=None if device is None else device.partition(":")[0],
        backend=line.text("backend"),
        hardware=hardware,
        num_parameters=whole(line.amount("parameters")),
        step_ns=measured(step_ns, n=steps),
        epoch_ns=None if epochs or epoch_ns is None else Measured(value=epoch_ns),
        epoch_estimated=False if epoch_ns is not None else None,
        samples_per_s=measured(rate, n=n),
        rank_samples_per_s=measured(of_one, n=n),
        unit=rate_unit,
        epochs=epochs,
        train_loss=loss(members[-1], "train_loss") if ok else None,
        test_accuracy=accuracy,
        peak_memory_bytes=whole(memory),
        settings=_other_settings(line, sequence),
        missing={} if world_size is not None else {"world_size": "no column states the number of ranks"},
        notes=notes,
    )


def _of_repeats(members: Sequence[TableLine], kinds: _Kinds) -> TrainingRun:
    """Make one run of several samples: means with their spread, and the highest peak. Notes count failed samples."""
    every = [_table_run([line], kinds) for line in members]
    done = [run for run in every if run.status == "ok"]
    if not done:
        return every[0]
    peaks = [run.peak_memory_bytes for run in done if run.peak_memory_bytes is not None]
    failed = len(every) - len(done)
    notes = [f"{counted(len(done), 'repeat')} of one run: figures are means, the interval is that of the mean"]
    notes += [f"{counted(failed, 'repeat')} failed: {next(run.error for run in every if run.error)}"] if failed else []
    means: dict[str, Any] = {
        name: _mean_of([getattr(run, name) for run in done])
        for name in ("step_ns", "epoch_ns", "samples_per_s", "rank_samples_per_s")
    }
    for name in ("train_loss", "test_accuracy"):
        values = [value for run in done if (value := getattr(run, name)) is not None]
        means[name] = fmean(values) if values else None
    return replace(
        done[0],
        **means,
        peak_memory_bytes=max(peaks, default=None),
        settings={
            **{key: value for key, value in done[0].settings.items() if plain(key) not in REPEATS},
            "repeats": len(done),
        },
        notes=(*done[0].notes, *notes),
    )


def _mean_of(values: Sequence[Measured | None]) -> Measured | None:
    figures = [value.value for value in values if value is not None]
    return Measured.between(fmean(figures), mean_interval(figures), n=len(figures)) if figures else None


class _RowEnd(NamedTuple):
    """How the run of a row ended. error: what the row says of it; None: it is ok."""

    status: Status
    error: str | None = None


def _row_end(line: TableLine) -> _RowEnd:
    """Return how a row's run ended, by its status column, else by words and zeros where a figure should be."""
    state = line.text("status")
    if state is not None and state.lower() not in _FINISHED:
        return _RowEnd(_failed_status(state), state)
    figures = [line.cell(role) for role in _TIMED if line.columns.has(role)]
    word = next((text for text in figures if text and not any(c.isdigit() for c in text)), None)
    if word is not None and word.lower() not in NOT_FINITE:
        return _RowEnd("oom" if _NO_MEMORY.search(word) else "error", f"the table states {word!r}")
    numbers = [number(text) for text in figures if text]
    if figures and not numbers and not line.cell("peak_memory"):
        return _RowEnd("error", "the table has no figure for this run")
    if any(parsed is not None and parsed[0] == 0 for parsed in numbers):
        return _RowEnd("error", "0 in the table: failed or not run")
    return _RowEnd("ok")


def _failed_status(state: str) -> Status:
    """Return what the words of a status column stand for, of a run that did not finish."""
    if _NO_MEMORY.search(state):
        return "oom"
    return "interrupted" if state.lower() in _BROKEN_OFF else "error"


def _row_step_ns(line: TableLine) -> float | None:
    per_s = line.amount("steps_per_s")
    return line.amount("step_ns") or (1e9 / per_s if per_s else None)


def _rates_and_unit(line: TableLine, world_size: int | None, *, ok: bool) -> tuple[float | None, float | None, str]:
    """Return (throughput of all ranks, that of one where only it is known, what it counts)."""
    if not line.columns.has("samples_per_s"):
        return None, None, "samples"
    meaning = line.columns.by_role["samples_per_s"][1]
    unit, value = meaning.item or "items", line.amount("samples_per_s") if ok else None
    if value is None or not meaning.per_rank:
        return value, None, unit
    return (None, value, unit) if world_size is None else (value * world_size, None, unit)


def _batch_and_sequence(
    line: TableLine, world_size: int | None, step_ns: float | None, rate: float | None, unit: str
) -> tuple[int | None, int | None]:
    """Return (global batch, sequence length), checked against each other and against step time and throughput.

    Without a column for it, the global batch is that of a rank times the ranks where the throughput confirms it.
    """
    batch, sequence = line.count("global_batch"), line.count("sequence_length")
    micro, accumulation = line.count("micro_batch"), line.count("accumulation")
    if batch is None and world_size == 1 and accumulation in (None, 1):
        batch = micro or line.count("batch_size")
    replicas = _replica_count(line, world_size)
    if batch is not None and micro is not None and replicas is not None and line.columns.has("global_batch"):
        ranks = micro * replicas * (accumulation or 1)
        if batch != ranks and (accumulation is not None or batch % ranks):
            copies = line.name("world_size") if replicas == world_size else f"{replicas} data-parallel ranks"
            of = "" if accumulation is None else f" x {line.name('accumulation')}"
            whole = "a multiple of " if accumulation is None else ""
            raise line.wrong("global_batch", f"{whole}{line.name('micro_batch')} x {copies}{of} = {ranks}")
    per_item = sequence if unit == "tokens" else 1
    if step_ns is None or rate is None or per_item is None:
        return batch, sequence
    if batch is None and micro is not None and replicas is not None:
        batch = micro * replicas * (accumulation or 1)
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


SPLIT = {
    name: axis
    for axis in ("data", "tensor", "pipeline", "context", "expert", "sequence", "model")
    for name in (f"{axis[0]}p", f"{axis[0]}p_size", f"{axis}_parallel", f"{axis}_parallel_size", f"n_{axis[0]}p")
}
"""Columns of how many ways a job is split."""
_OF_MODEL = re.compile(r"(?:^|[^a-z])(?:tp|pp|cp|ep|3d|2d|4d|5d|megatron|tensor|pipe(?:line)?|hybrid)(?![a-z])", re.I)


def _replica_count(line: TableLine, world_size: int | None) -> int | None:
    """Count the ranks that get samples of their own; None where the model is split over an unknown number of them."""
    ways: dict[str, int] = {}
    for name, cell in zip(line.columns.names, line.row.cells, strict=True):
        axis, parsed = SPLIT.get(plain(name)), number(cell)
        if axis is not None and parsed is not None and parsed[0] >= 1 and not parsed[1]:
            ways[axis] = int(parsed[0])
    if "data" in ways or world_size is None:
        return ways.get("data")
    split = ways.get("tensor", 1) * ways.get("pipeline", 1) * ways.get("context", 1) * ways.get("model", 1)
    if split == 1 and _OF_MODEL.search(line.cell("strategy")):
        return None
    return world_size // split if world_size % split == 0 else None


def _run_epochs(members: Sequence[TableLine], world_size: int | None) -> tuple[tuple[Epoch, ...], tuple[str, ...]]:
    """Read the epochs of a run, with notes. Raises DataError for an epoch that stands twice."""
    seen: dict[int, TableLine] = {}
    for line in members:
        value = line.value("epoch")
        if value is None or value < 0 or value != int(value):
            raise line.wrong("epoch", "the number of an epoch")
        if int(value) in seen:
            raise DataError(
                f"{line.row.where}: epoch {int(value)} appears twice",
                why=f"{seen[int(value)].row.where} already has it: two runs, or an unknown column separates them",
                fix="keep the rows of one run, or name the column: --columns NAME=run",
            )
        seen[int(value)] = line
    in_order = [line for _, line in sorted(seen.items())]
    times, notes = _epoch_times_ns(sorted(seen), in_order)
    epochs = tuple(
        Epoch(
            number=at,
            duration_ns=time,
            train_loss=loss(line, "train_loss"),
            train_accuracy=fraction(line, "train_accuracy"),
            validation_loss=loss(line, "validation_loss"),
            validation_accuracy=fraction(line, "validation_accuracy"),
            samples_per_s=_rates_and_unit(line, world_size, ok=True)[0],
        )
        for at, line, time in zip(sorted(seen), in_order, times, strict=True)
    )
    return epochs, notes


def _epoch_times_ns(
    numbers: Sequence[int], lines: Sequence[TableLine]
) -> tuple[Sequence[float | None], tuple[str, ...]]:
    """Return the time of each epoch, and a note where a column counts from the start of the training.

    Raises DataError for a column ``time`` that may do so.
    """
    times = [line.amount("epoch_ns") or line.amount("time_ns") for line in lines]
    if not lines[0].columns.has("time_ns") or lines[0].columns.has("epoch_ns"):
        return times, ()
    if own := own_times(lines[0].name("time_ns"), numbers, times):
        return own[0], (own[1],)
    if is_clock([time or 0.0 for time in times]):
        name = lines[0].name("time_ns")
        raise DataError(
            f"{lines[-1].row.where}: {name} grows from epoch to epoch",
            why="it may count from the start of the training instead of from the start of the epoch",
            fix=f"--columns {name}=epoch_time_s if each is of one epoch, --columns {name}=- to leave it out",
        )
    return times, ()


def _same_count(members: Sequence[TableLine], role: str) -> int | None:
    """Return a count that all rows of a run share. Raises DataError where they differ."""
    values = [line.count(role) for line in members]
    if len(set(values)) > 1:
        raise members[-1].wrong(role, f"{values[0]}, as in the other rows of this run")
    return values[0]


def _stated_scaling(members: Sequence[TableLine]) -> Any:
    """Return ``weak`` or ``strong`` where a cell of the row says just one of them, else None."""
    line = members[0]
    words = {line.row.cells[i].lower() for i in line.columns.others}
    stated = words & {"weak", "strong"}
    return stated.pop() if len(stated) == 1 else None


def _runs_with_scaling(runs: Sequence[TrainingRun]) -> tuple[TrainingRun, ...]:
    """Find the kind of scaling also by the sizes of data sets; note it as missing where only epochs are timed."""
    first = first_runs(runs)
    scaled = []
    for run in runs:
        base = first[run.group][0] if run.status == "ok" and run.group in first else run
        new = run
        if _more_ranks(run, base) and run.scaling is None and run.dataset_size and base.dataset_size:
            grown = run.dataset_size * (base.world_size or 1) == base.dataset_size * (run.world_size or 1)
            new = replace(run, scaling="strong" if run.dataset_size == base.dataset_size else "weak" if grown else None)
        timed = run.epoch_ns is not None or any(epoch.duration_ns for epoch in run.epochs)
        rated = run.samples_per_s is not None or run.step_ns is not None
        if timed and not rated and new.scaling is None and any(_more_ranks(other, base) for other in runs):
            why = "only epochs are timed, and no column states the samples of one"
            new = replace(new, missing={**new.missing, "scaling": why})
        scaled.append(new)
    return tuple(scaled)


def _more_ranks(run: TrainingRun, base: TrainingRun) -> bool:
    return run.group == base.group and (run.world_size or 0) > (base.world_size or 0)


def _run_id(line: TableLine, kinds: _Kinds) -> str:
    """Return the file's name for its only record; else the run's own name, else what tells the table's rows apart."""
    stem = line.table.source.stem
    if line.table.single:
        return stem
    name = line.text("run")
    if name is not None:
        return slug(name) or stem
    parts = []
    for role, prefix in _ID_PARTS:
        place = line.columns.by_role.get(role)
        if place is not None and place[0] in line.table.varying:
            parts.append(f"{prefix}{line.cell(role)}")
        if role == "hardware":
            parts += [of(line, name) for name in kinds.names if _column_varies(line.table, name)]
    parts += [kinds.day(line)] if kinds.day(line) else []
    return f"{stem}-{slug(*parts)}" if slug(*parts) else stem


def _column_varies(table: TextTable, name: str) -> bool:
    return name in table.names and table.names.index(name) in table.varying


_ID_PARTS = (
    ("model", ""), ("strategy", ""), ("hardware", ""), ("precision", ""), ("global_batch", "gb"), ("batch_size", "b"),
    ("micro_batch", "b"), ("world_size", ""),
)  # fmt: skip


def _group_name(line: TableLine, kinds: _Kinds, sequence: int | None) -> str:
    texts = [line.text("model"), line.text("dataset"), _row_precision(line)]
    texts += [f"sequences of {sequence}" if sequence else None]
    texts += [*kinds.texts(line), line.text("hardware") if kinds.hardware else None]
    return ", ".join(text for text in texts if text) or line.table.source.stem


def _other_settings(line: TableLine, sequence: int | None) -> dict[str, Any]:
    """Return what else the row says, as plain values."""
    settings: dict[str, Any] = {} if sequence is None else {"sequence_length": sequence}
    if batch := line.text("batch_size"):
        settings["batch_size"] = plain_value(batch)
    for index in line.columns.others:
        text = line.row.cells[index]
        if text and len(text) <= _TEXT and len(settings) < _SETTINGS and text.lower() not in NOT_FINITE:
            name = line.columns.names[index]
            settings.setdefault(name, text if _A_NAME.search(plain(name)) else plain_value(text))
    return settings


def _row_precision(line: TableLine) -> str | None:
    text = line.text("precision")
    return {"true": "amp", "false": None}.get(text.lower(), text) if text else None
