"""What one rank measured, and what a cell left: all its ranks together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from stepscope.core.dataclass import record
from stepscope.records.cell import CellSpec, CellStatus
from stepscope.records.comm import CommHeader, CommSample, RankOfCell
from stepscope.records.mesh import PipelineProfile
from stepscope.records.parts import SAMPLED, TITLES
from stepscope.records.prediction import BackwardProfile

PHASES = ("data_wait", "forward", "backward_compute", "exposed_comm", "optimizer", "other")
PHASE_NAMES = tuple(TITLES[SAMPLED[phase]] for phase in PHASES)


@record
class StepSample:
    """One optimizer step on one rank. The six phases sum to ``step_ns`` exactly.

    samples: trained on by this rank in this step, all micro-steps; global_samples: by all ranks.
    loss_sum: sum of sample losses on this rank (global loss = sum over ranks / global_samples).
    full: False for a tail window with fewer samples than the global batch; left out of step-time summaries.
    host_data_ns: time the host waited for data, on the host's clock whatever ``clock`` says.
    """

    round: int
    step: int
    epoch: int
    warmup: bool
    full: bool
    samples: int
    global_samples: int
    loss_sum: float | None  # None: not finite
    step_ns: int
    data_wait_ns: int
    forward_ns: int
    backward_compute_ns: int
    exposed_comm_ns: int
    optimizer_ns: int
    other_ns: int
    host_data_ns: int


@record
class SamplesHeader:
    """First line of a samples file."""

    cell_id: str
    rank: int
    world_size: int
    clock: Literal["perf_counter", "cuda_event"]
    comm_source: Literal["hook", "trace", "none"]  # none: exposed_comm_ns is not measured


@record
class EpochResult:
    """One epoch: global mean of sample losses, test accuracy, samples this rank really trained on."""

    round: int
    epoch: int
    train_loss: float | None  # None: not finite; ``non_finite`` says so
    test_accuracy: float | None
    samples_seen: int
    distinct_samples_seen: int
    epoch_ns: int
    non_finite: bool = False


@record
class PlanCheck:
    """Collectives seen in one step by the flight recorder against the strategy's ``comm_plan``."""

    matches: bool
    expected: tuple[str, ...]
    observed: tuple[str, ...]
    source: str
    unavailable: str | None = None


@record
class RankSummary(RankOfCell):
    """Final word of one rank about one cell."""

    scheduler_policy: str
    num_threads: int
    num_parameters: int
    train_samples: int
    test_samples: int
    warmup_steps: int
    timed_steps: int
    stop_reason: str
    parameter_checksum: str
    peak_memory_bytes: int | None
    peak_memory_source: str
    epochs: tuple[EpochResult, ...] = ()
    plan_check: PlanCheck | None = None
    notes: tuple[str, ...] = ()
    trace_file: str | None = None
    backward: BackwardProfile | None = None
    pipeline: PipelineProfile | None = None
    memory: Mapping[str, int] = field(default_factory=dict)  # bytes by kind, tensor by tensor, in one step
    planted_ns: Mapping[str, int] = field(default_factory=dict)  # lost to faults by kind, median over timed steps
    model_part: int = 0  # ranks with the same one ended with the same parameters
    run_delay_fraction: float | None = None  # of the timed steps: ready to run, without a processor; None: not known


@record
class Heartbeat:
    """Where a rank is. Written when it changes, by a thread that never blocks training.

    moved_ns: when cell, phase or step last changed, on the clock of ``time_ns``. longest_ns: the longest that a step or
    an evaluation of this cell has taken so far. op, size_bytes: the collective being measured, and ``step`` the calls of it
    entered so far in this phase; None outside sweeps. entered_ns: when op or size last changed.
    """

    rank: int
    host: str
    pid: int
    cell_id: str | None
    phase: str
    step: int
    collectives_enqueued: int | None = None
    last_collective: str | None = None
    time_ns: int = 0  # wall clock, since the epoch
    moved_ns: int = 0
    longest_ns: int = 0
    op: str | None = None
    size_bytes: int | None = None
    entered_ns: int = 0


@record
class RankError:
    """Why a rank gave up, written by that rank before it exits."""

    rank: int
    host: str
    pid: int
    cell_id: str | None
    phase: str
    step: int
    kind: Literal["oom", "host_oom", "victim", "error", "usage", "terminated"]
    exception: str
    traceback: str
    fix: str | None = None
    time_ns: int = field(default=0)


@record
class RankSamples:
    """What one rank measured in one cell, warm-up steps included."""

    header: SamplesHeader
    steps: tuple[StepSample, ...]


@record
class RankCommSamples:
    """What one rank measured in one comm cell: a sample per size (or pair)."""

    header: CommHeader
    samples: tuple[CommSample, ...]


@record
class CellResult:
    """Everything known about one cell. Partial after a failure: ranks or summaries may be missing."""

    spec: CellSpec
    status: CellStatus | None
    samples: tuple[RankSamples, ...]
    summaries: tuple[RankSummary, ...]
