"""One training run, whoever measured it: a cell of `stepscope bench`, or a result file of another tool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from stepscope.core.dataclass import record
from stepscope.records.nouns import Measured, Scaling, Status


@record
class Epoch:
    """One epoch of training. number: as the source counts, from 0 or 1. duration_ns: training only, slowest rank.

    samples_seen: by all ranks together, where every rank's was counted. warmup: whether steps from before the end of
    warm-up lie in it; None: not told.
    """

    number: int
    duration_ns: float | None
    train_loss: float | None
    train_accuracy: float | None = None
    validation_loss: float | None = None
    validation_accuracy: float | None = None
    samples_per_s: float | None = None
    samples_seen: int | None = None
    warmup: bool | None = None


@record
class PhaseTimes:
    """Median over steps of the slowest rank's phases, ns. They need not sum to the median step."""

    data_wait_ns: float
    forward_ns: float
    backward_compute_ns: float
    exposed_comm_ns: float
    optimizer_ns: float
    other_ns: float


@record
class StepChange:
    """From one step on a run's steps take longer, or less long. step: the first of them, as its log numbers it.

    ratio: step time after / before, medians. before_ns, after_ns: None where only rates were logged. share: of all logged
    steps, those after.
    """

    step: int
    ratio: float
    share: float
    before_ns: float | None = None
    after_ns: float | None = None


@record
class TrainingRun:
    """One training run on one number of ranks. Unknown is None, never a guess.

    run_id: short and unique within the evidence (a cell id, ``exp020``). label: how tables name it beside its group.
    group: what is trained on what: model, data, precision. Runs of one group may be compared over ranks and strategies.
    world_size: ranks; None: neither told nor stated by the user.
    scaling: what is kept as ranks are added: ``strong`` the global batch (or the data set), ``weak`` each rank's batch.
    baseline_id: run_id that speed-up refers to; itself for a baseline; None: to be found, or there is none.
    samples_per_s: over all ranks. rank_samples_per_s: of one, where it is not known how many there are. unit: what a sample
        is (``samples``, ``images``, ``tokens``).
    epoch_estimated: the epoch's time is made from steps, no epoch really ran.
    workload, model_options, strategy_key, strategy_options, epochs_asked: of a cell of ours, what ``model`` and ``strategy``
    name for people: keys of the registries with their options, and the epochs that it was asked to run (None: steps).
    parts_ns: of a step, mean of those logged, by key of ``records.parts``, where a log has them.
    device_shares: of a profiler's table, of the device's own time (without one, of the CPU's): ``communication`` and
        ``copies``, hidden or not, and the largest operators.
    varied: settings without a field of their own that the cells of one run folder do not share.
    threads_per_rank: compute threads that a rank really had. comm_source: ``hook`` or ``trace``, of ``exposed_comm_ns``;
        ``none``: not measured.
    model_flop: of an optimizer step over all ranks, 3 x forward. mfu: of the median step, against the
        dense peak of the precision, or as the source states it; None where FLOP or peak are unknown. hfu: the same with what
        activation checkpointing computes again.
    memory: peak bytes a rank by kind (parameters, gradients, optimizer, activations, buffers, slack), as far as known.
    hardware: device's name, with host or machine where runs of several are compared. settings: everything else that is known
    of how it was run, plain values. missing: what the source leaves open and the user may state, with why it matters
    (``world_size``: ``the configuration says DDP and not on how many ranks``). step_change: where its steps changed their
    level, of logs that time each. last_step: the last one that a log has.
    near_end_line: of the third last step in it: the job outlived an error before it.
    """

    run_id: str
    label: str
    group: str
    source: str
    status: Status
    world_size: int | None
    error: str | None = None
    model: str | None = None
    dataset: str | None = None
    dataset_size: int | None = None
    strategy: str | None = None
    precision: str | None = None
    accumulation: int | None = None
    micro_batch: int | None = None
    global_batch: int | None = None
    scaling: Scaling | None = None
    baseline_id: str | None = None
    device: str | None = None
    backend: str | None = None
    hardware: str | None = None
    num_parameters: int | None = None
    step_ns: Measured | None = None
    epoch_ns: Measured | None = None
    epoch_estimated: bool | None = None
    samples_per_s: Measured | None = None
    rank_samples_per_s: Measured | None = None
    unit: str = "samples"
    exposed_comm_ns: Measured | None = None
    comm_bytes_per_step: int | None = None
    phases: PhaseTimes | None = None
    parts_ns: Mapping[str, float] = field(default_factory=dict)
    device_shares: Mapping[str, float] = field(default_factory=dict)
    epochs: tuple[Epoch, ...] = ()
    train_loss: float | None = None
    test_accuracy: float | None = None
    samples_seen_per_rank: tuple[int, ...] | None = None
    model_flop: float | None = None
    mfu: float | None = None
    hfu: float | None = None
    peak_memory_bytes: int | None = None
    memory: Mapping[str, int] = field(default_factory=dict)
    steps_per_epoch: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    workload: str | None = None
    model_options: Mapping[str, Any] = field(default_factory=dict)
    strategy_key: str | None = None
    strategy_options: Mapping[str, Any] = field(default_factory=dict)
    epochs_asked: int | None = None
    varied: Mapping[str, Any] = field(default_factory=dict)
    threads_per_rank: int | None = None
    comm_source: str | None = None
    notes: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    step_change: StepChange | None = None
    last_step: int | None = None
    near_end_line: int | None = None


@record
class TargetTime:
    """Time to a validation accuracy: sum of epoch times up to and with the first epoch that reaches it.

    reached_epochs, time_ns: of the run, None: never reached; baseline_*: of its baseline.
    speedup: baseline's time / the run's; None unless both reach it.
    """

    accuracy: float
    reached_epochs: int | None
    time_ns: float | None
    baseline_reached_epochs: int | None
    baseline_time_ns: float | None
    speedup: float | None


@record
class ScalingRow:
    """One run against its baseline.

    basis: what the speed-up is made of (``mean of epochs 2 to 20``, ``median step``). speedup: throughput over the
    baseline's; low, high: interval, None without one. efficiency = speedup / world size (x the baseline's world size where
    that is above 1). rating: excellent, good, fair, poor, negative; ``not equivalent``: the run does other
    work than its baseline (lower accuracy, duplicated data); None for a baseline, and where a run of the same baseline
    is super-linear.
    speedup_of_medians: the same from median epochs, where ``speedup`` is made of mean ones.
    best_accuracy, baseline_best_accuracy: best validation accuracy of either. targets: times to the accuracies asked for,
    else to the highest multiple of 0.05 and of 0.01 that both reach, and to the lowest multiple of 0.01 that only the
    baseline reaches; lowest first.
    """

    group: str
    run_id: str
    baseline_id: str
    world_size: int
    baseline_world_size: int
    is_baseline: bool
    basis: str
    speedup: float
    low: float | None
    high: float | None
    efficiency: float
    scaling: Scaling | None
    rating: str | None
    speedup_of_medians: float | None = None
    best_accuracy: float | None = None
    baseline_best_accuracy: float | None = None
    targets: tuple[TargetTime, ...] = ()
