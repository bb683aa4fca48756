"""Markdown tables of throughput: Benchmark | Framework | Cluster | GPUs | Date | Img/sec."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from stepscope.core.errors import DataError
from stepscope.records.imported import Imported, Stated
from stepscope.records.training import TrainingRun
from stepscope.store.importer import Candidate, Importer
from stepscope.store.importers._folders import read_each, recognises_any
from stepscope.store.importers._texts import Line, read_text, require_cells
from stepscope.store.importers._training import (
    label,
    measured,
    slug,
    with_own_baselines,
    with_unique_ids,
)
from stepscope.store.stated import with_stated

_SUFFIXES = (".md",)
_COLUMNS = ("benchmark", "framework", "cluster", "gpus", "date", "img/sec")
_HEAD = re.compile(r"^\s*\|\s*" + r"\s*\|\s*".join(map(re.escape, _COLUMNS)) + r"\s*\|\s*$", re.M | re.I)
_RULE = re.compile(r":?-+:?")
_STRATEGIES: Mapping[str, str] = {
    "ddp": "ddp",
    "ddp lightning": "ddp (lightning)",
    "deepspeed": "deepspeed",
    "horovod": "horovod",
}
_PRECISIONS = ("fp16", "bf16", "fp32", "tf32")
_PLAIN = "ddp"
_OTHER_BASE = "the table has no row of its own on one GPU: speed-up is against DDP on one GPU of the same group"


@dataclass(frozen=True, slots=True)
class _Benchmark:
    """``DDP, synthetic, fp16`` taken apart. strategy: None where the name is a program's (``run_clm``)."""

    name: str
    strategy: str | None
    data: str
    precision: str | None


def _knows(candidate: Candidate) -> bool:
    return _HEAD.search(candidate.text) is not None


def _recognises(candidate: Candidate) -> bool:
    return recognises_any(candidate, _knows, suffixes=_SUFFIXES)


def _read(path: Path, stated: Stated) -> Imported:
    parts, notes = read_each(path, _knows, _read_file, suffixes=_SUFFIXES)
    runs = with_unique_ids(run for part in parts for run in part)
    return Imported(
        format="throughput_markdown",
        path=str(path),
        runs=with_stated(_with_plain_baselines(with_own_baselines(runs)), stated),
        notes=(
            "the table says neither model, batch nor which GPUs a cluster has; whether the batch of a rank or of all "
            "was kept (weak or strong scaling) is not told",
            *notes,
        ),
    )


def _read_file(path: Path) -> tuple[TrainingRun, ...]:
    runs = tuple(_run(row) for row in _rows(path))
    if not runs:
        raise DataError(f"{path}: no rows under the table's header", fix="copy the file again")
    return runs


def _rows(path: Path) -> Iterator[Line]:
    inside = False
    for number, raw in enumerate(read_text(path).splitlines(), start=1):
        if not raw.strip().startswith("|"):
            inside = False
            continue
        if _HEAD.match(raw):
            inside = True
            continue
        cells = tuple(cell.strip() for cell in raw.strip().strip("|").split("|"))
        if not inside or all(_RULE.fullmatch(cell) for cell in cells):
            continue
        row = Line(str(path), number, cells)
        require_cells(row, len(_COLUMNS))
        yield row


def _run(row: Line) -> TrainingRun:
    benchmark, framework, cluster, _, date, figure = row.cells
    made, gpus = _benchmark(benchmark), row.count(3, "GPUs")
    failed = not any(c.isdigit() for c in figure) and figure.lower() != "nan"
    rate = None if failed else row.positive(5, "Img/sec")
    images = made.strategy is not None
    what = "images" if images else made.name
    parts = (what, made.data, made.precision or "", cluster, framework, date)
    return TrainingRun(
        run_id=slug(cluster, date, *benchmark.split(","), gpus),
        label=label(made.strategy, gpus),
        group=", ".join(part for part in parts if part),
        source=row.where,
        status="error" if failed else "ok",
        error=f"the table says {figure!r}" if failed else None,
        world_size=gpus,
        model=None if images else made.name,
        dataset=made.data,
        strategy=made.strategy,
        precision=made.precision,
        hardware=cluster,
        samples_per_s=measured(rate),
        unit="images" if images else "samples",
        settings={"framework": framework, "date": date},
        notes=() if images else (f"the column says Img/sec; {made.name} does not train on images",),
    )


def _benchmark(text: str) -> _Benchmark:
    name, *rest = (part.strip() for part in text.split(","))
    precision = next((part.lower() for part in rest if part.lower() in _PRECISIONS), None)
    data = ", ".join(part.removesuffix(" data") for part in rest if part.lower() not in _PRECISIONS)
    return _Benchmark(name, _STRATEGIES.get(name.lower()), data, precision)


def _with_plain_baselines(runs: tuple[TrainingRun, ...]) -> tuple[TrainingRun, ...]:
    """Runs of a strategy without a row on one GPU refer to DDP on one GPU of their group, and say so."""
    plain = {run.group: run.run_id for run in runs if _on_one(run) and run.strategy == _PLAIN}
    own = {(run.group, run.strategy) for run in runs if _on_one(run)}
    return tuple(
        replace(run, baseline_id=plain[run.group], notes=(*run.notes, _OTHER_BASE))
        if run.status == "ok" and run.group in plain and (run.group, run.strategy) not in own
        else run
        for run in runs
    )


def _on_one(run: TrainingRun) -> bool:
    return run.world_size == 1 and run.status == "ok"


IMPORTER = Importer(
    title="throughput tables in Markdown (Benchmark, Framework, Cluster, GPUs)",
    recognises=_recognises,
    read=_read,
    rank=30,
)
