"""The one-rank cell that another cell's speed-up is measured against."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from stepscope.records.cell import CellSpec

SINGLE = "single"

COMMUNICATION_VARIABLES = ("NCCL_", "TORCH_NCCL_", "GLOO_", "UCX_", "FI_")
"""Prefixes of variables that tune communication only: one rank, which sends nothing, is the same with and without."""

SAME = (
    "workload", "model", "dataset", "dataset_options", "data_digest", "precision", "accumulation", "batch_rule",
    "optimizer", "lr", "momentum", "lr_warmup", "weight_decay", "clip", "loss", "seed", "num_workers", "pin_memory",
    "persistent_workers", "cudnn_benchmark", "device", "threads_per_rank",
)  # fmt: skip
"""Fields that a cell and its baseline share; with the batch that the matrix fixes, nothing but the ranks differs."""


def scaling_of(cell: CellSpec) -> Literal["strong", "weak"]:
    """``strong``: the global batch is fixed and divided among the ranks. ``weak``: each rank's batch is fixed."""
    return "strong" if cell.batch_rule == "global_batch" else "weak"


def find_baseline(cell: CellSpec, cells: Iterable[CellSpec]) -> str | None:
    """Id of the one-rank cell with the same model, data, settings and batch rule; None when there is none.

    Preferred: strategy ``single``, else the same strategy on one rank; among those, the same swept environment, network
    and length of run. A one-rank cell is itself a baseline: None.
    """
    if cell.world_size == 1:
        return None
    candidates = [other for other in cells if other.world_size == 1 and _comparable(cell, other)]
    ranked = sorted(candidates, key=lambda other: _distance(cell, other))  # stable: file order decides ties
    return ranked[0].cell_id if ranked else None


def _comparable(cell: CellSpec, other: CellSpec) -> bool:
    if any(getattr(cell, name) != getattr(other, name) for name in SAME):
        return False
    if cell.batch_rule == "global_batch" and cell.global_batch != other.global_batch:
        return False
    if cell.batch_rule == "micro_batch" and cell.micro_batch != other.micro_batch:
        return False
    if other.strategy == SINGLE:
        return _compute_env(other) == _compute_env(cell)
    return (
        other.strategy == cell.strategy
        and dict(other.strategy_options) == dict(cell.strategy_options)
        and dict(other.env) == dict(cell.env)
    )


def _compute_env(cell: CellSpec) -> dict[str, str]:
    return {name: text for name, text in cell.env.items() if not name.startswith(COMMUNICATION_VARIABLES)}


def _distance(cell: CellSpec, other: CellSpec) -> tuple[bool, ...]:
    return (
        other.strategy != SINGLE,
        dict(other.env) != dict(cell.env),
        other.network != cell.network,
        (other.steps, other.epochs) != (cell.steps, cell.epochs),
    )
