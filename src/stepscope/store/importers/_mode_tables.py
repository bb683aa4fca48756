"""What the notebook that compares single GPU, naive, interleaved and DDP training prints: its tables and its log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from pathlib import Path

from stepscope.core.errors import DataError
from stepscope.records.training import Measured, TrainingRun
from stepscope.store.importers._texts import Line
from stepscope.store.importers._training import SECOND, label, measured, require_agreement, slug

_STRATEGIES: Mapping[str, str] = {
    "single_gpu": "single",
    "dp_naive": "naive",
    "dp_interleaved": "interleaved",
    "ddp_builtin": "ddp",
}
_TITLES: Mapping[str, str] = {
    "Single GPU baseline": "single_gpu",
    "DP Naive": "dp_naive",
    "DP Interleaved": "dp_interleaved",
    "PyTorch DDP": "ddp_builtin",
}
_SHORT = re.compile(r"^Model\s+Mode\s+GPUs\s+Params\s+Avg Epoch\s+Accuracy\s*$", re.M)
_LONG = re.compile(r"^Model\s+Mode\s+GPUs\s+Params\s+Epoch\(s\)\s+Comm\(s\)\s+Thruput\s+Speedup\s+Acc\s*$", re.M)
_SHORT_ROW = re.compile(r"(\S+)\s+(\S+)\s+(\d+)\s+([\d,]+)\s+([\d.]+)s\s+([\d.]+)\s*")
_LONG_ROW = re.compile(
    r"(\S+)\s+(\S+)\s+(\d+)\s+[\d.]+[KMB]\s+([\d.]+)s\s+([\d.]+)s\s+(\d+)/s\s+([\d.]+)x\s+([\d.]+)\s*"
)
_STEP = re.compile(r"^\s*\[\d\] (" + "|".join(map(re.escape, _TITLES)) + r")(?:, (\d{1,6}) GPUs)?\.\.\.\s*$")
_MODEL = re.compile(r"^Model: (\S{1,60})\s*$")
_RESULT = re.compile(r"^\s*avg_epoch=([\d.]+)s(?:, comm=([\d.]+)s)?\s*$")
_SAMPLES = re.compile(r'CMD: .*"n_samples": (\d{1,15})\b')
_GPU = re.compile(r"^\s*GPU \d+: (\S.*?) \([\d.]+ GB\)\s*$", re.M)
_HALF_DIGIT_S = 0.00005
_SAME_SAMPLES = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeRow:
    """One training run as far as one table or the log tells it. where: file and line."""

    where: str
    model: str
    mode: str
    gpus: int
    epoch_s: float
    parameters: int | None = None
    comm_s: float | None = None
    samples_per_s: float | None = None
    speedup: float | None = None
    accuracy: float | None = None
    samples: int | None = None


def known(text: str) -> bool:
    """Whether a text holds one of the tables, or the log."""
    return bool(_SHORT.search(text) or _LONG.search(text) or ("avg_epoch=" in text and "Single GPU" in text))


def rows_of(path: Path, text: str) -> tuple[ModeRow, ...]:
    """All rows of a text, of tables and log. Raises DataError for a damaged row."""
    return tuple(chain(_table_rows(path, text), _log_rows(path, text)))


def gpu_of(text: str) -> str | None:
    """Name of the GPUs, where the text lists them and they are alike."""
    names = set(_GPU.findall(text))
    return names.pop() if len(names) == 1 else None


def runs_of(rows: Sequence[ModeRow], *, gpu: str | None) -> tuple[TrainingRun, ...]:
    """One run for each model and mode; what several texts tell of it is put together. Raises DataError where they differ."""
    found: dict[tuple[str, str], ModeRow] = {}
    for row in rows:
        key = row.model, row.mode
        found[key] = _joined(found[key], row) if key in found else row
    return tuple(_run(row, found.get((row.model, "single_gpu")), gpu) for row in found.values())


def _table_rows(path: Path, text: str) -> Iterable[ModeRow]:
    columns: re.Pattern[str] | None = None
    for number, raw in enumerate(text.splitlines(), start=1):
        if _SHORT.match(raw) or _LONG.match(raw):
            columns = _SHORT_ROW if _SHORT.match(raw) else _LONG_ROW
            continue
        if columns is None or not raw.strip(" ─-"):
            continue
        row = columns.fullmatch(raw)
        if row is not None:
            yield _table_row(f"{path}:{number}", row.groups(), short=columns is _SHORT_ROW)
        elif any(mode in raw.split() for mode in _STRATEGIES):
            raise DataError(f"{path}:{number}: damaged row", why=raw.strip()[:120], fix="copy the text again")
        else:
            columns = None


def _table_row(where: str, cells: Sequence[str], *, short: bool) -> ModeRow:
    row = Line(where.rpartition(":")[0], int(where.rpartition(":")[2]), tuple(cells))
    if cells[1] not in _STRATEGIES:
        raise row.wrong(1, "Mode", f"one of {', '.join(_STRATEGIES)}")
    if short:
        return ModeRow(
            where=where, model=cells[0], mode=cells[1], gpus=row.count(2, "GPUs"),
            parameters=row.count(3, "Params"), epoch_s=row.positive(4, "Avg Epoch"),
            accuracy=row.amount(5, "Accuracy"),
        )  # fmt: skip
    return ModeRow(
        where=where, model=cells[0], mode=cells[1], gpus=row.count(2, "GPUs"),
        epoch_s=row.positive(3, "Epoch(s)"), comm_s=row.amount(4, "Comm(s)") or None,
        samples_per_s=row.positive(5, "Thruput"), speedup=row.positive(6, "Speedup"), accuracy=row.amount(7, "Acc"),
    )  # fmt: skip


def _log_rows(path: Path, text: str) -> Iterable[ModeRow]:
    model: str | None = None
    step: re.Match[str] | None = None
    samples: int | None = None
    for number, raw in enumerate(text.splitlines(), start=1):
        if head := _MODEL.match(raw):
            model, step = head[1], None
        elif begun := _STEP.match(raw):
            step, samples = begun, None
        elif told := _SAMPLES.search(raw):
            samples = int(told[1]) or None
        elif (result := _RESULT.match(raw)) and model is not None and step is not None:
            cells = Line(str(path), number, (result[1], result[2] or "0", step[2] or "1"))
            yield ModeRow(
                where=cells.where,
                model=model,
                mode=_TITLES[step[1]],
                gpus=cells.count(2, "number of GPUs"),
                epoch_s=cells.positive(0, "avg_epoch"),
                comm_s=cells.amount(1, "comm") or None,
                samples=samples,
            )
            step = None


def _joined(one: ModeRow, other: ModeRow) -> ModeRow:
    """Two tellings of one run; what one leaves out, the other may have."""
    more = {}
    for each in fields(ModeRow):
        mine, theirs = getattr(one, each.name), getattr(other, each.name)
        if mine is None:
            more[each.name] = theirs
        elif theirs is not None and theirs != mine and each.name != "where":
            raise DataError(
                f"{other.where}: {each.name} of {one.model} {one.mode} is {theirs}, and {one.where} says {mine}",
                why="two tables of one benchmark differ: they are of different runs",
                fix="pass the texts of one run",
            )
    return replace(one, **more)


def _run(row: ModeRow, single: ModeRow | None, gpu: str | None) -> TrainingRun:
    if row.speedup is not None and single is not None:
        slack = _HALF_DIGIT_S / row.epoch_s + _HALF_DIGIT_S / single.epoch_s + 0.005 / row.speedup
        require_agreement(
            row.where,
            "Speedup",
            stated=row.speedup,
            derived=single.epoch_s / row.epoch_s,
            formula=f"epoch on one GPU ({single.epoch_s} s) / epoch ({row.epoch_s} s)",
            tolerance=slack,
        )
    rate = row.samples_per_s or (row.samples / row.epoch_s if row.samples else None)
    strategy = _STRATEGIES[row.mode]
    return TrainingRun(
        run_id=slug(row.model, strategy),
        label=label(strategy, row.gpus),
        group=f"model {row.model}",
        source=row.where,
        status="ok",
        world_size=row.gpus,
        model=row.model,
        dataset_size=row.samples,
        strategy=strategy,
        scaling="strong" if single is not None and _same_samples(row, single) else None,
        baseline_id=None if single is None else slug(row.model, _STRATEGIES[single.mode]),
        device="cuda",
        hardware=gpu,
        num_parameters=row.parameters,
        epoch_ns=Measured(value=row.epoch_s * SECOND),
        epoch_estimated=False,
        samples_per_s=measured(rate),
        settings={} if row.comm_s is None else {"exposed_comm_ns_per_epoch": row.comm_s * SECOND},
        notes=_notes(row),
    )


def _same_samples(row: ModeRow, single: ModeRow) -> bool:
    """Whether throughput x epoch time says that an epoch has as many samples as on one GPU."""
    if row.gpus == 1 or row.samples_per_s is None or single.samples_per_s is None:
        return False
    ratio = row.samples_per_s * row.epoch_s / (single.samples_per_s * single.epoch_s)
    return abs(ratio - 1) < _SAME_SAMPLES


def _notes(row: ModeRow) -> tuple[str, ...]:
    notes = []
    if row.samples_per_s is not None and row.comm_s is None and row.gpus > 1:
        notes.append("its communication time of 0.0000 s was not measured: unknown here")
    if row.accuracy is not None:
        notes.append(f"accuracy {row.accuracy:g}: the last on the training data; on random labels it says nothing")
    return tuple(notes)
