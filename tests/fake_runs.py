"""Run folders written by hand: every number in them is chosen, so that what must come out is known.

Loaded by the conftest files of the folders that use it (pytest's importlib mode puts no test folder on
sys.path).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from stepscope.records import codec
from stepscope.records.cell import CellSpec, CellStatus
from stepscope.records.samples import EpochResult, RankSummary, SamplesHeader, StepSample
from stepscope.records.training import TrainingRun
from stepscope.results.run_figures import bench_rows
from stepscope.results.runs import labelled
from stepscope.store.layout import RunLayout
from stepscope.store.writer import write_bytes, write_record


def spec(cell_id: str, **changes: Any) -> CellSpec:
    """A steps cell of a small MLP on synthetic data; ``changes`` replace fields."""
    fields: dict[str, Any] = {
        "cell_id": cell_id, "workload": "mlp", "model": {"size": "small"}, "dataset": "synthetic",
        "dataset_options": {}, "data_digest": "synthetic", "strategy": "ddp", "strategy_options": {},
        "precision": "fp32", "accumulation": 1, "world_size": 2, "micro_batch": 32, "global_batch": 64,
        "batch_rule": "global_batch", "optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "lr_warmup": 0,
        "weight_decay": 0.0, "clip": None, "loss": "ce", "steps": "auto", "epochs": None, "seed": 1, "num_workers": 0,
        "pin_memory": False, "persistent_workers": False, "cudnn_benchmark": False, "device": "cpu",
        "backend": "gloo", "threads_per_rank": 1,
    }  # fmt: skip
    return CellSpec(**(fields | changes))


def single(cell_id: str, **changes: Any) -> CellSpec:
    """The one-rank baseline of :func:`spec`."""
    return spec(cell_id, **({"strategy": "single", "world_size": 1, "micro_batch": 64} | changes))


def step(number: int, step_ns: int, **changes: Any) -> StepSample:
    """A full timed step; the phases are a tenth each, ``other`` takes the rest."""
    tenth = step_ns // 10
    fields: dict[str, Any] = {
        "round": 0, "step": number, "epoch": 0, "warmup": False, "full": True, "samples": 32, "global_samples": 64,
        "loss_sum": 64.0, "step_ns": step_ns, "data_wait_ns": tenth, "forward_ns": tenth,
        "backward_compute_ns": tenth, "exposed_comm_ns": tenth, "optimizer_ns": tenth, "host_data_ns": tenth,
    }  # fmt: skip
    fields |= changes
    parts = ("data_wait_ns", "forward_ns", "backward_compute_ns", "exposed_comm_ns", "optimizer_ns")
    fields["other_ns"] = fields["step_ns"] - sum(fields[name] for name in parts)
    return StepSample(**fields)


def epoch(number: int, epoch_ns: int, **changes: Any) -> EpochResult:
    fields: dict[str, Any] = {
        "round": 0, "epoch": number, "train_loss": 1.5, "test_accuracy": 0.5, "samples_seen": 128,
        "distinct_samples_seen": 128, "epoch_ns": epoch_ns,
    }  # fmt: skip
    return EpochResult(**(fields | changes))


def rank_summary(cell: CellSpec, rank: int, **changes: Any) -> RankSummary:
    fields: dict[str, Any] = {
        "cell_id": cell.cell_id, "rank": rank, "local_rank": rank, "world_size": cell.world_size, "host": "node-a",
        "pid": 100 + rank, "device_name": "cpu", "torch_version": "2.13.0", "scheduler_policy": "batch",
        "num_threads": 1, "num_parameters": 1000, "train_samples": 256, "test_samples": 0, "warmup_steps": 3,
        "timed_steps": 20, "stop_reason": "interval tight enough", "parameter_checksum": "aa",
        "peak_memory_bytes": 100 * 2**20, "peak_memory_source": "VmHWM",
    }  # fmt: skip
    return RankSummary(**(fields | changes))


def write_samples(layout: RunLayout, cell: CellSpec, rank: int, steps: Sequence[StepSample]) -> None:
    header = SamplesHeader(
        cell_id=cell.cell_id, rank=rank, world_size=cell.world_size, clock="perf_counter", comm_source="hook"
    )
    lines = [codec.encode_line(header, header=True), *(codec.encode_line(s) for s in steps)]
    write_bytes(layout.cell(cell.cell_id).samples(rank), b"".join(lines))


def write_cell(
    layout: RunLayout,
    cell: CellSpec,
    *,
    ranks: Sequence[Sequence[StepSample]] = (),
    epochs: Sequence[Sequence[EpochResult]] | None = None,
    summaries: bool = True,
    status: CellStatus | None = None,
    **summary_changes: Any,
) -> None:
    """A cell as the runner and its ranks leave it: ``ranks`` and ``epochs`` hold one list a rank."""
    folder = layout.cell(cell.cell_id)
    write_record(folder.spec, cell)
    write_record(folder.status, status or CellStatus(cell_id=cell.cell_id, status="ok", group_id="g1"))
    for rank, steps in enumerate(ranks):
        write_samples(layout, cell, rank, steps)
        if summaries:
            results = tuple(epochs[rank]) if epochs else ()
            record = rank_summary(cell, rank, **({"epochs": results} | summary_changes))
            write_record(folder.summary(rank), record)


def series(values_ns: Sequence[int], **changes: Any) -> list[StepSample]:
    """Full timed steps numbered from 0."""
    return [step(number, value, **changes) for number, value in enumerate(values_ns)]


def flat(runs: Sequence[TrainingRun]) -> list[SimpleNamespace]:
    """The rows of ``bench --json``, their keys as attributes."""
    return [SimpleNamespace(**each) for each in bench_rows(runs)]


def row(cell_id: str, **changes: Any) -> TrainingRun:
    """A run of two ddp ranks without any figure, by the flat names of stepscope.bench/1; ``changes`` fill it."""
    fields: dict[str, Any] = {
        "schema": "stepscope.result_row/1", "cell_id": cell_id, "status": "ok", "error": None, "workload": "mlp",
        "model": {"size": "small"}, "dataset": "synthetic", "strategy": "ddp", "strategy_options": {},
        "precision": "fp32", "accumulation": 1, "world_size": 2, "micro_batch": 32, "global_batch": 64, "device": "cpu",
        "backend": "gloo", "num_parameters": 1_345_000,
    }  # fmt: skip
    (run,) = labelled([codec.decode(json.dumps(fields | changes).encode(), TrainingRun, source="row")])
    return run


def timed_row(cell_id: str, step_ns: float, *, spread: float | None = 0.02, **changes: Any) -> TrainingRun:
    """A run with a step time, an interval of ± ``spread`` (None: without) and what follows from them."""
    ends = (None, None) if spread is None else (step_ns * (1 - spread), step_ns * (1 + spread))
    batch = changes.get("global_batch", 64)
    fields: dict[str, Any] = {
        "step_ns_median": step_ns, "step_ns_low": ends[0], "step_ns_high": ends[1],
        "samples_per_s": batch / step_ns * 1e9,
    }  # fmt: skip
    return row(cell_id, **(fields | changes))
