"""Scaling over worker processes: a csv with the time of every epoch, or a text table of one time a row (``T_par``)."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import fmean

from stepscope.core.errors import DataError
from stepscope.records.imported import Imported, Stated
from stepscope.records.training import Epoch, Measured, TrainingRun
from stepscope.store.importer import Candidate, Importer
from stepscope.store.importers._folders import read_each, recognises_any
from stepscope.store.importers._texts import Line, column, read_csv, read_text, require_cells
from stepscope.store.importers._training import (
    SECOND,
    label,
    require_agreement,
    slug,
    with_own_baselines,
    with_unique_ids,
)
from stepscope.store.stated import with_stated

_SUFFIXES = (".csv", ".txt")
_CSV_HEAD = re.compile(r"\ufeff?experiment,workers,input_size,epoch,wall_sec\b")
_INPUT = re.compile(r"^Input size:\s*(\d{1,18})\s*$", re.M)
_SEQUENTIAL = re.compile(r"^Sequential baseline T_seq:\s*([\d.]{1,30})\s*sec\s*$", re.M)
_TABLE_HEAD = re.compile(r"^workers\s+T_par\(sec\)\s+S\(p\)", re.M)
_LAST_DIGIT = 0.0005


def _knows(candidate: Candidate) -> bool:
    text = candidate.text
    return bool(_CSV_HEAD.match(text) or (_INPUT.search(text) and _TABLE_HEAD.search(text)))


def _recognises(candidate: Candidate) -> bool:
    return recognises_any(candidate, _knows, suffixes=_SUFFIXES)


def _read(path: Path, stated: Stated) -> Imported:
    parts, notes = read_each(path, _knows, _read_file, suffixes=_SUFFIXES)
    runs = with_unique_ids(run for part in parts for run in part)
    return Imported(
        format="workers_scaling",
        path=str(path),
        runs=with_stated(with_own_baselines(runs), stated),
        notes=notes,
    )


def _read_file(path: Path) -> tuple[TrainingRun, ...]:
    return _from_csv(path) if _CSV_HEAD.match(Candidate(path).text) else _from_text(path)


def _from_csv(path: Path) -> tuple[TrainingRun, ...]:
    header, rows = read_csv(path)
    at = {name: column(header, name, str(path)) for name in ("workers", "input_size", "epoch", "wall_sec")}
    found: dict[tuple[str, int], list[Line]] = {}
    for row in rows:
        key = (row.cells[0].strip(), row.count(at["workers"], "workers"))
        found.setdefault(key, []).append(row)
    if not found:
        raise DataError(f"{path}: no rows under the header", fix="run the experiment again: nothing was measured")
    return tuple(_csv_run(path, *key, lines, at) for key, lines in found.items())


def _csv_run(path: Path, experiment: str, workers: int, rows: list[Line], at: dict[str, int]) -> TrainingRun:
    sizes = {row.count(at["input_size"], "input_size") for row in rows}
    if len(sizes) > 1:
        raise DataError(
            f"{rows[-1].where}: {experiment} on {workers} workers has several input sizes",
            why=f"they are {', '.join(map(str, sorted(sizes)))}: the file mixes runs",
        )
    size, epochs = sizes.pop(), _epochs(rows, at)
    mean_s = fmean(epoch.duration_ns or 0.0 for epoch in epochs) / SECOND
    weak = experiment == "weak"
    group = f"{size // workers} samples a worker" if weak else f"{size} samples"
    return TrainingRun(
        run_id=slug(path.stem, workers) if experiment in path.stem else slug(path.stem, experiment, workers),
        label=label(None, workers),
        group=f"{experiment} scaling, {group}",
        source=str(path),
        status="ok",
        world_size=workers,
        dataset_size=size,
        scaling="weak" if weak else "strong" if experiment == "strong" else None,
        epoch_ns=Measured(value=mean_s * SECOND, n=len(epochs)),
        epoch_estimated=False,
        samples_per_s=Measured(value=size / mean_s, n=len(epochs)),
        epochs=epochs,
        notes=(
            "throughput is input_size over the mean of all epochs; the file names neither model nor machine",
            *((_WEAK_NOTE,) if weak else ()),
        ),
    )


_WEAK_NOTE = (
    "the file's own speedup divides the time of one worker's data by that of n times the data; "
    "speed-up here is of throughput"
)


def _epochs(rows: list[Line], at: dict[str, int]) -> tuple[Epoch, ...]:
    seen: dict[int, Line] = {}
    for row in rows:
        number = row.count(at["epoch"], "epoch")
        if number in seen:
            raise DataError(
                f"{row.where}: epoch {number} a second time",
                why=f"line {seen[number].number} has it already: two runs wrote one file",
                fix="keep the rows of one run",
            )
        seen[number] = row
    return tuple(
        Epoch(
            number=number,
            duration_ns=seen[number].positive(at["wall_sec"], "wall_sec") * SECOND,
            train_loss=None,
        )
        for number in sorted(seen)
    )


def _from_text(path: Path) -> tuple[TrainingRun, ...]:
    text = read_text(path)
    size, sequential, head = _INPUT.search(text), _SEQUENTIAL.search(text), _TABLE_HEAD.search(text)
    if size is None or sequential is None or head is None or int(size[1]) == 0:
        raise DataError(
            f"{path}: a line is missing",
            why="it must say `Input size`, `Sequential baseline T_seq` and have a table of workers",
            fix="copy the file again",
        )
    base_s = Line(str(path), _line_of(text, sequential), (sequential[1],)).positive(0, "T_seq")
    names = text[head.start() :].split("\n", 1)[0].split()
    first = _line_of(text, head) + 1
    runs = []
    for number, raw in enumerate(text.splitlines()[first - 1 :], start=first):
        if not raw.strip():
            continue
        row = Line(str(path), number, tuple(raw.split()))
        require_cells(row, len(names))
        runs.append(_text_run(path, row, size=int(size[1]), base_s=base_s))
    if not runs:
        raise DataError(f"{path}:{first - 1}: no rows under the header", fix="copy the file again")
    return tuple(runs)


def _line_of(text: str, found: re.Match[str]) -> int:
    return text.count("\n", 0, found.start()) + 1


def _text_run(path: Path, row: Line, *, size: int, base_s: float) -> TrainingRun:
    workers, time_s = row.count(0, "workers"), row.positive(1, "T_par")
    speedup = row.positive(2, "S(p)")
    require_agreement(
        row.where,
        "S(p)",
        stated=speedup,
        derived=base_s / time_s,
        formula="T_seq / T_par",
        tolerance=_LAST_DIGIT * (1 / speedup + 1 / time_s + 1 / base_s),
    )
    return TrainingRun(
        run_id=slug(path.stem, workers),
        label=label(None, workers),
        group=f"strong scaling, {size} samples",
        source=str(path),
        status="ok",
        world_size=workers,
        dataset_size=size,
        scaling="strong",
        epochs=(Epoch(number=1, duration_ns=time_s * SECOND, train_loss=None),),
        notes=(
            "its one time is shown as one epoch: the file does not say how many epochs it holds",
            "the file names neither model nor machine",
        ),
    )


IMPORTER = Importer(
    title="scaling over worker processes (csv of epochs, T_par table)",
    recognises=_recognises,
    read=_read,
    rank=30,
)
