"""JSON of a benchmark suite, and what ``stepscope comm --format document-001`` writes in its place.

Both have name, world_size, timestamp, config and results.communication, .training, .memory. The suite's own layout:

- communication.<op> maps ``1024KB`` (of 1024 bytes) to time_ms and bandwidth_GB_s: mean over back-to-back calls on
  rank 0. Sizes are the tensor's on one rank: S of an all-gather is that times the ranks. ``p2p`` times have a barrier in
  them: they give no rate.
- training.training_results: one DDP run for each model and batch of a rank: weak scaling.
- ``memory_gb`` is read right after the peak was reset, gradients are assumed and activations come from a pass without
  gradients: none of them is a run's peak, none is taken over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from stepscope.core.dataclass import record
from stepscope.core.errors import DataError
from stepscope.records.comm import CommRow
from stepscope.records.imported import Imported
from stepscope.records.training import TrainingRun
from stepscope.store.comm_table import UNKNOWN, mean_row
from stepscope.store.importer import Candidate
from stepscope.store.reader import Fields, read_fields
from stepscope.store.training_runs import (
    MS,
    each_file,
    label,
    measured,
    require_agreement,
    slug,
)

OPS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reducescatter": "reduce_scatter",
    "p2p": "send_recv",
    "broadcast": "broadcast",
}
SAMPLES_PER_BATCH = 10
"""Batches of a rank in the suite's data set, which all ranks share: more ranks get less than a batch each."""

_SIZE = re.compile(r"(\d+)KB")
_TOLERANCE = 0.01
_KEYS = ('"world_size"', '"warmup_iters"', '"benchmark_iters"', '"results"')
_NOT_SWEEPS = ("pairs", "overlap")


@record
class _Document:
    path: Path
    name: str
    world_size: int | None
    config: Fields
    results: Fields

    @property
    def device_name(self) -> str | None:
        return self.config.maybe(self.config.text, "device")

    @property
    def backend(self) -> str:
        """The backend as stated; the suite itself runs on NCCL only."""
        stated = self.config.maybe(self.config.text, "backend")
        return stated or ("unknown" if "backend" in self.config.values else "nccl")


def _knows_suite(candidate: Candidate) -> bool:
    text = candidate.text.lstrip("\ufeff \t\r\n")
    return text.startswith("{") and all(key in text for key in _KEYS)


def _read_suite(path: Path) -> Iterator[Imported]:
    """Yield what one file holds: collectives and training. Raises DataError where it holds neither."""
    fields = read_fields(path)
    document = _Document(
        path=path,
        name=fields.maybe(fields.text, "name") or path.stem,
        world_size=fields.maybe(fields.count, "world_size"),
        config=fields.part("config"),
        results=fields.part("results"),
    )
    notes: list[str] = []
    rows = tuple(_suite_comm_rows(document, notes))
    runs = tuple(_suite_runs(document, notes))
    if not rows and not runs:
        raise DataError(
            f"{path}: it holds neither collectives nor training",
            why=f"results has: {', '.join(document.results.values) or 'nothing'}",
            fix="run the benchmark with --benchmark comm, training or all",
        )
    yield Imported(
        format="", path=str(path), runs=runs, comm_rows=rows, hardware=document.device_name, notes=tuple(notes)
    )


def _suite_comm_rows(document: _Document, notes: list[str]) -> Iterator[CommRow]:
    """Yield a row for each measured size of its collectives."""
    if communication := document.results.maybe(document.results.part, "communication"):
        for key, entries in communication.values.items():
            if isinstance(entries, dict):
                yield from _suite_rows(document, communication.part(key), key, notes)
            elif key in _NOT_SWEEPS:
                for entry in communication.parts(key):
                    yield _own_row(document, key, entry)
            else:
                for number, sweep in enumerate(communication.parts(key)):
                    shared = {name: value for name, value in sweep.values.items() if name != "sizes"}
                    for entry in sweep.parts("sizes"):
                        yield _own_row(document, f"{key}-{number}", entry, shared)
    for entry in document.results.maybe(document.results.parts, "matmul") or ():
        yield _own_row(document, "matmul", entry)


def _suite_rows(document: _Document, sizes: Fields, key: str, notes: list[str]) -> Iterator[CommRow]:
    """Read one operation of the suite's own layout."""
    op = OPS.get(key)
    if op is None:
        notes.append(f"{document.path}: {key}: unknown operation; left out")
        return
    n = _rank_count(document)
    if op == "send_recv":
        notes.append(f"{document.path}: times of p2p include a barrier of all ranks: they give no link rate")
    for text in sizes.values:
        entry = sizes.part(text)
        size = _SIZE.fullmatch(text)
        if size is None:
            raise DataError(f"{document.path}: {sizes.at}: {text!r} is not a size", why="expected 1024KB or the like")
        size_bytes = int(size[1]) * 1024 * (n if op == "all_gather" else 1)
        row = mean_row(
            cell_id=f"{document.name}/{op}",
            op=op,
            world_size=n,
            dtype="fp32",
            device="cuda",
            backend=document.backend,
            size_bytes=size_bytes,
            numel=size_bytes // 4,
            time_ns_mean=entry.positive("time_ms") * MS,
            iterations=document.config.maybe(document.config.count, "benchmark_iters"),
            warmup=_warmup_steps(document),
            notes=("mean over back-to-back calls on rank 0",),
        )
        rate = entry.maybe(entry.amount, "bandwidth_GB_s")
        if rate is not None and row.busbw_bytes_per_s is not None:
            require_agreement(
                str(document.path),
                f"{entry.at}.bandwidth_GB_s",
                stated=rate,
                derived=row.busbw_bytes_per_s / 1e9,
                formula="bus bandwidth from size and time",
                tolerance=_TOLERANCE,
            )
        rateless: dict[str, Any] = {"algbw_bytes_per_s": None, "busbw_bytes_per_s": None}
        yield replace(row, **rateless) if op == "send_recv" else row


def _own_row(document: _Document, key: str, entry: Fields, shared: Mapping[str, Any] | None = None) -> CommRow:
    """Make a row of `stepscope comm` again: what the document leaves out is unknown, or the kind's only value."""
    at, kind = entry.at, key if key in (*_NOT_SWEEPS, "matmul") else "collective"
    fields: dict[str, Any] = {
        "cell_id": f"{document.name}/{key}", "kind": kind, "pacing": "barrier", "backend": document.backend,
        "op": {"pairs": "send_recv", "matmul": "matmul"}.get(kind), "world_size": document.world_size,
        "device": "cuda" if document.backend == "nccl" else "cpu",
        "scheduler_policy": document.config.maybe(document.config.text, "scheduler_policy"),
        **(shared or {}), **entry.values,
    }  # fmt: skip
    unknown = sorted(set(fields) - set(UNKNOWN))
    if unknown:
        raise DataError(f"{document.path}: {at}: unknown {', '.join(unknown)}", why="it is of a newer version")
    if fields.get("asked_bytes") is None:
        fields["asked_bytes"] = fields.get("size_bytes")
    if fields.get("warmup") is None:
        fields["warmup"] = _warmup_steps(document) if kind != "matmul" else None
    try:
        return msgspec.convert(UNKNOWN | fields, CommRow)
    except msgspec.ValidationError as error:
        raise DataError(f"{document.path}: {at} is damaged", why=str(error)) from error


def _warmup_steps(document: _Document) -> int | None:
    value = document.config.maybe(document.config.amount, "warmup_iters")
    return None if value is None else int(value)


def _rank_count(document: _Document) -> int:
    if document.world_size is None:
        raise DataError(f"{document.path}: no world_size", fix="add the number of ranks of the benchmark")
    return document.world_size


def _suite_runs(document: _Document, notes: list[str]) -> Iterator[TrainingRun]:
    """Yield the runs of its training."""
    training = document.results.maybe(document.results.part, "training")
    if training is None or not training.values:
        return
    if "training_results" not in training.values:
        notes.append(f"{document.path}: results.training has no training_results: not read")
        return
    n = _rank_count(document)
    rows = training.parts("training_results")
    if rows:
        notes.append(
            f"{document.path}: its memory figures are not peaks of a training step and are left out; out-of-memory runs "
            "have no row"
        )
    if rows and n > SAMPLES_PER_BATCH:
        notes.append(
            f"{document.path}: on {n} ranks each got less than the batch that samples/s assumes: throughput is overstated"
        )
    for row in rows:
        yield _suite_run(document, row, n)


def _suite_run(document: _Document, row: Fields, n: int) -> TrainingRun:
    """Return one run. Raises DataError where its figures contradict each other."""
    size, batch, total = row.text("model_size"), row.count("batch_size"), row.count("global_batch_size")
    rate, step_ns = row.positive("samples_per_sec"), row.positive("time_per_step_ms") * MS
    where = f"{document.path}: {row.at}"
    require_agreement(
        where,
        "global_batch_size",
        stated=total,
        derived=batch * n,
        formula="batch_size x world_size",
        tolerance=0,
    )
    require_agreement(
        where,
        "samples_per_sec",
        stated=rate,
        derived=total / step_ns * 1e9,
        formula="global batch / step time",
        tolerance=_TOLERANCE,
    )
    steps = document.config.maybe(document.config.count, "benchmark_iters")
    model = f"suite MLP {size}"
    return TrainingRun(
        run_id=slug(size, f"b{batch}", f"{n}gpu"),
        label=label("ddp", n),
        group=f"{model} on synthetic, {batch} samples per rank",
        source=str(document.path),
        status="ok",
        world_size=n,
        model=model,
        dataset="synthetic",
        strategy="ddp",
        micro_batch=batch,
        global_batch=total,
        scaling="weak",
        device="cuda",
        backend=document.backend,
        hardware=document.device_name,
        num_parameters=row.maybe(row.count, "num_parameters"),
        step_ns=measured(step_ns, n=steps),
        samples_per_s=measured(rate, n=steps),
    )


IMPORTER = each_file(
    "suite_results",
    title="JSON of a benchmark suite",
    recognises=_knows_suite,
    read=_read_suite,
    reads=(".json",),
    rank=45,
    marks=("warmup_iters",),
)
