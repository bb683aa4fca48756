"""The run folder's own records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from stepscope.core.dataclass import dataclass

Status = Literal["ok", "oom", "host_oom", "timeout", "error", "killed", "unsupported", "skipped", "interrupted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """run.json: what was asked for, when and with which tool.

    cells: of the matrix, in its order. earlier_cells: have a result in this folder and are not in the matrix any more.
    argv: of the last command. commands: every different one that ran in this folder, oldest first.
    """

    kind: Literal["bench", "comm", "profile", "imported"]
    name: str
    matrix: Mapping[str, Any]  # the resolved file, as the user could have written it
    cells: tuple[str, ...]
    argv: tuple[str, ...]
    data_dir: str | None = None
    environment: str = "environment.json"
    earlier_cells: tuple[str, ...] = ()
    commands: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CellStatus:
    """status.json, written by the controller only. ``failing_rank`` is the first that failed, not the first seen."""

    cell_id: str
    status: Status
    phase: str | None = None
    reason: str | None = None
    failing_rank: int | None = None
    failing_host: str | None = None
    exception: str | None = None
    stderr_tail: str | None = None
    exit_codes: Mapping[str, int] | None = None
    wall_ns: int | None = None
    group_id: str | None = None
    attempt: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRow:
    """One cell in results.jsonl; names are pinned in docs/reference/formats.md. Unknown is None.

    varied: settings that have no column of their own and that the cells of this run do not share.
    """

    cell_id: str
    status: Status
    error: str | None
    workload: str
    model: Mapping[str, Any]
    dataset: str
    dataset_size: int | None
    strategy: str
    strategy_options: Mapping[str, Any]
    precision: str
    accumulation: int
    world_size: int
    micro_batch: int
    global_batch: int
    device: str
    backend: str
    num_parameters: int | None
    steps: int | None
    epochs: int | None
    step_ns_median: float | None
    step_ns_low: float | None
    step_ns_high: float | None
    samples_per_s: float | None
    comm_bytes_per_step: int | None
    exposed_comm_ns_median: float | None
    comm_source: str | None
    train_loss: float | None
    test_accuracy: float | None
    samples_seen_per_rank: tuple[int, ...] | None
    peak_memory_bytes: int | None
    speedup: float | None
    efficiency: float | None
    scaling: Literal["strong", "weak"] | None
    baseline_cell_id: str | None
    rating: str | None = None
    epoch_ns: float | None = None
    epoch_ns_low: float | None = None
    epoch_ns_high: float | None = None
    epoch_estimated: bool | None = None  # True: from the median step; False: epochs really ran
    steps_per_epoch: int | None = None
    exposed_comm_ns_low: float | None = None
    exposed_comm_ns_high: float | None = None
    threads_per_rank: int | None = None  # compute threads that a rank really had
    varied: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
