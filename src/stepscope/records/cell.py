"""The run folder's records: the run, a cell as the matrix resolved it, the group of cells that one set of processes runs,
how a cell ended, the files of a report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from stepscope.core.dataclass import record
from stepscope.records.comm import CommMeasure, CommSpec
from stepscope.records.nouns import Status
from stepscope.records.plan import ModelFacts

Scalar = bool | int | float | str | None
Options = Mapping[str, Scalar | list[Scalar]]

Precision = Literal["fp32", "tf32", "amp_bf16", "amp_fp16", "bf16"]
OptimizerName = Literal["sgd", "adam", "adamw", "own"]
Checkpointing = Literal["none", "selective", "full"]
LossName = Literal["ce", "mse", "own"]


@record
class CellSpec:
    """One measurement to make: everything that decides its result, nothing that does not.

    Exactly one of ``steps`` and ``epochs`` is set. ``micro_batch`` and ``global_batch`` are both resolved
    (global = micro x data shards x accumulation); ``batch_rule`` says which of the two the user fixed.
    ``mesh``: how the ranks are arranged (records/mesh.py); empty: all are data parallel.
    ``inject``: planted faults (records/injection.py).
    ``facts``: of a user's own model (``python:`` workload), measured before the cell was planned; None: the spec has them.
    """

    cell_id: str
    workload: str
    model: Options
    dataset: str
    dataset_options: Options
    data_digest: str
    strategy: str
    strategy_options: Options
    precision: Precision
    accumulation: int
    world_size: int
    micro_batch: int
    global_batch: int
    batch_rule: Literal["micro_batch", "global_batch"]
    optimizer: OptimizerName
    lr: float
    momentum: float
    lr_warmup: int  # optimizer steps of linear warm-up of the learning rate
    weight_decay: float
    clip: float | None  # gradient norm
    loss: LossName
    steps: int | Literal["auto"] | None
    epochs: int | None
    seed: int
    num_workers: int
    pin_memory: bool
    persistent_workers: bool
    cudnn_benchmark: bool
    device: Literal["cpu", "cuda"]
    backend: Literal["gloo", "nccl"]
    threads_per_rank: int | Literal["auto"]
    env: Mapping[str, str] = field(default_factory=dict)
    network: str | None = None
    mesh: Mapping[str, int] = field(default_factory=dict)
    activation_checkpointing: Checkpointing = "none"
    inject: str | None = None
    facts: ModelFacts | None = None


Cell = CellSpec | CommSpec
"""What a worker group runs one after the other."""


@record
class MeasureSettings:
    """How to measure; not part of a cell's identity.

    warmup_steps: exact number, or None = end of warm-up found by measurement.
    ci_fraction: stop when the 95% interval of the median step is within this fraction of it.
    """

    warmup_steps: int | None = None
    rounds: int = 1
    budget_ns: int = 60_000_000_000
    ci_fraction: float = 0.02
    timeout_ns: int = 900_000_000_000
    profile: bool = False


@record
class GroupSpec:
    """What ``python -m stepscope.rank`` reads: cells in order, one world, one environment.

    cells: training cells; comm_cells: sweeps of collectives. A group has one kind of them.
    members: the nonces of the ranks that it is for, where a launcher has started them (launch/join.py); any may read it
    otherwise. master_port: where they meet, if not at the port that their environment names.
    """

    group_id: str
    run_dir: str
    world_size: int
    device: Literal["cpu", "cuda"]
    backend: Literal["gloo", "nccl"]
    threads_per_rank: int
    measure: MeasureSettings
    cells: tuple[CellSpec, ...]
    data_dir: str | None = None
    cache_dir: str
    download: bool = False
    tensorboard_dir: str | None = None
    warnings_as_errors: bool = False
    comm_cells: tuple[CommSpec, ...] = ()
    comm_measure: CommMeasure = field(default_factory=CommMeasure)
    members: tuple[str, ...] = ()
    master_port: int | None = None

    @property
    def work(self) -> tuple[Cell, ...]:
        """All cells, of whatever kind, in order."""
        return (*self.cells, *self.comm_cells)


@record
class RunRecord:
    """run.json: what was asked for, when and with which tool.

    cells: of the matrix, in its order. earlier_cells: have a result in this folder and are not in the matrix any more.
    sections: of the matrix, each with its cells, run or not. argv: of the last command. commands: every different one that
    ran in this folder, oldest first.
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
    sections: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@record
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


@record
class ReportFiles:
    """.stepscope-report.json: the files that `report` wrote.

    of: SHA-256 of the paths and selections of the results that they show; empty where a report was stopped.
    files: SHA-256 by name, so that a file that somebody has changed since is known to be theirs.
    """

    of: str
    files: Mapping[str, str]
