"""Throughput by machine and model as csv: a row a machine (``..._8xH100_...`` says how many GPUs), a column a model."""

from __future__ import annotations

import re
from pathlib import Path

from stepscope.core.errors import DataError
from stepscope.records.imported import Imported, Stated
from stepscope.records.training import TrainingRun
from stepscope.store.importer import Candidate, Importer
from stepscope.store.importers._folders import read_each, recognises_any
from stepscope.store.importers._texts import Line, read_csv
from stepscope.store.importers._training import (
    label,
    measured,
    slug,
    with_own_baselines,
    with_unique_ids,
)
from stepscope.store.stated import with_stated

_SUFFIXES = (".csv",)
_MODELS = frozenset(
    (
        "ssd", "bert_base_squad", "bert_large_squad", "gnmt", "ncf", "resnet50", "tacotron2", "transformerxlbase",
        "transformerxllarge", "waveglow",
    )
)  # fmt: skip
_IMAGES = ("ssd", "resnet50")
_GPUS = re.compile(r"(?:^|[_ ])(\d{1,6})x ?(?=[A-Za-z])")
_PRECISION = re.compile(r"(?:^|[-_.])(fp16|bf16|fp32|tf32)(?:[-_.]|$)", re.I)
_BATCHES = ("name_gpu", "num_gpu")
_NOT_RUN = "0.0 in the table: failed or not run"
_UNIT_NOTE = (
    "the table does not say what it counts per second (images, sequences, tokens, audio samples); "
    "`items` where the model's name does not tell"
)
_SCALING_NOTE = (
    "the table has no batches: whether that of a GPU or that of all was kept is not told; state it with --scaling"
)


def _header(candidate: Candidate) -> list[str]:
    first = candidate.text.lstrip("\ufeff").partition("\n")[0]
    return [name.strip() for name in first.split(",")]


def _knows(candidate: Candidate) -> bool:
    header = _header(candidate)
    return len(_MODELS.intersection(header)) >= 2 and (header[0] in ("", "name") or _is_batches(header))


def _is_batches(header: list[str] | tuple[str, ...]) -> bool:
    return all(name in header for name in _BATCHES)


def _recognises(candidate: Candidate) -> bool:
    return recognises_any(candidate, _knows, suffixes=_SUFFIXES)


def _read(path: Path, stated: Stated) -> Imported:
    parts, notes = read_each(path, _knows, _read_file, suffixes=_SUFFIXES)
    runs = with_unique_ids(run for part in parts if isinstance(part, tuple) for run in part)
    batches = tuple(part for part in parts if isinstance(part, str))
    if not runs:
        raise DataError(
            f"{path}: a table of batch sizes, without any throughput",
            why="; ".join(batches),
            fix="pass the folder, or the csv with the throughput",
        )
    return Imported(
        format="machine_throughput_csv",
        path=str(path),
        runs=with_stated(with_own_baselines(runs), stated),
        notes=(_UNIT_NOTE, _SCALING_NOTE, *batches, *notes),
    )


def _read_file(path: Path) -> tuple[TrainingRun, ...] | str:
    """Runs; of a table of batch sizes, what it says."""
    header, rows = read_csv(path)
    if not rows:
        raise DataError(f"{path}: no rows under the header", fix="copy the file again")
    if _is_batches(header):
        return _batches(path, header, rows)
    models = [(at, name) for at, name in enumerate(header) if at > 0 and name]
    found = _PRECISION.search(path.stem)
    precision = found[1].lower() if found else None
    seen: dict[str, int] = {}
    for row in rows:
        name = row.cells[0].strip()
        if name in seen:
            raise DataError(
                f"{row.where}: machine {name[:60]!r} a second time",
                why=f"line {seen[name]} has it already",
                fix="keep one of the rows",
            )
        seen[name] = row.number
    return tuple(_run(row, at, model, precision) for row in rows for at, model in models)


def _run(row: Line, at: int, model: str, precision: str | None) -> TrainingRun:
    name = row.cells[0].strip()
    counts = [found for found in _GPUS.finditer(name) if int(found[1]) > 0]
    if len(counts) != 1:
        raise DataError(
            f"{row.where}: number of GPUs of {name[:60]!r} cannot be told",
            why="the name must hold it once, as in `8xH100`",
            fix="correct the name",
        )
    gpus, machine = int(counts[0][1]), name[: counts[0].start(1)] + name[counts[0].end() :]
    rate = row.amount(at, model)
    return TrainingRun(
        run_id=slug(name, model),
        label=label(None, gpus),
        group=", ".join(part for part in (model, precision, machine) if part),
        source=row.where,
        status="ok" if rate > 0 else "error",
        error=None if rate > 0 else _NOT_RUN,
        world_size=gpus,
        model=model,
        precision=precision,
        hardware=machine,
        samples_per_s=measured(rate or None),
        unit="images" if model in _IMAGES else "items",
    )


def _batches(path: Path, header: tuple[str, ...], rows: tuple[Line, ...]) -> str:
    """What a table of batch sizes says, in a sentence; its rows name other machines than the throughput's."""
    gpus = header.index("num_gpu")
    models = [(at, name) for at, name in enumerate(header) if name in _MODELS]
    for row in rows:
        row.count(gpus, "num_gpu")
        for at, name in models:
            row.count(at, name)
    return (
        f"{path.name}: batch sizes of {len(rows)} machines and {len(models)} models, not joined: its rows have other names "
        "than those of the throughput"
    )


IMPORTER = Importer(title="throughput by machine and model (csv)", recognises=_recognises, read=_read, rank=30)
