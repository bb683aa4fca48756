"""The headline numbers, each declared once: documents, tables, ``compare``, ``--fail-if`` and ``trace --diff`` take it so.

A new figure of a run is one entry and the function that it names: it then appears in the JSON and CSV of ``bench``, in the
tables of runs, on the page, in ``compare`` and its ``--fail-if``, and in docs/reference/metrics.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Literal

from stepscope.core.dataclass import record
from stepscope.records.finding import Diagnosis
from stepscope.records.nouns import EXPOSED_COMM, Measured
from stepscope.records.parts import COMPUTATION, STEP, TITLES
from stepscope.records.training import ScalingRow, TrainingRun
from stepscope.results.epochs import PER_EPOCH, best_accuracy, dropped_epochs, epoch_time, train_loss

Unit = Literal["ns", "bytes", "per s", "fraction", "ratio", "count", "loss"]
Of = Literal[
    "run",
    "epoch",
    "collective",
    "step",
    "steps",
    "shares",
    "memory",
    "hardware",
    "wall",
    "rank",
    "job",
    "diagnosis",
    "dry",
]
"""``run``, ``epoch``: :func:`run_facts`; ``collective``: a CommRow; ``step``: a part of a traced step, of the rank with
most; ``steps``: all timed steps of a profiled job; ``shares``: parts of them, ``memory``: of its ranks
(results/job_figures.py); ``hardware``: its GPUs and ports (results/hardware.py); ``wall``: a Goodput; ``rank``: a part of
a rank's step; ``job``: a TraceSummary; ``diagnosis``: evidence and its findings; ``dry``: a DryStep."""

RANGES: Mapping[Unit, tuple[float, float]] = {"fraction": (0.0, 1.0), "loss": (-math.inf, math.inf)}
"""Lowest and highest value that a figure of the unit can have; of the others 0 and no limit."""

Better = Literal["low", "high"]
BETTER: Mapping[Unit, Better] = {
    "ns": "low", "bytes": "low", "loss": "low", "count": "low", "per s": "high", "ratio": "high",
}  # fmt: skip
"""Which way a figure of the unit is better. A fraction says it itself: of what is wanted, or of what is lost."""


@record
class Figure:
    """One headline number.

    key: in JSON, CSV and conditions, one of ``of``. title: in sentences. short: over a narrow column. better: which way;
    because: why it is the other way than ``BETTER`` says of its unit.
    value: an attribute's path, or a function, of what it is ``of``; of ``step``, ``steps`` and ``rank`` the name of the
    part (of ``steps`` also a function of step times, ns [ranks, steps]), of ``shares`` the names of parts that lie in it.
    compared: whether ``compare`` shows it; not what follows from other figures. tested: whether repeats of it are tested.
    """

    key: str
    of: Of
    unit: Unit
    title: str
    value: str | Callable[[Any], Measured | float | None]
    help: str
    better: Better
    because: str | None = None
    short: str | None = None
    compared: bool = True
    tested: bool = False

    def read(self, facts: Any) -> Any:
        """The value, a Measured or a number; None: unknown."""
        return at_path(facts, self.value) if isinstance(self.value, str) else self.value(facts)

    def measured(self, facts: Any) -> Measured | None:
        """The value with its interval, where it has one."""
        reading = self.read(facts)
        return reading if reading is None or isinstance(reading, Measured) else Measured(value=float(reading))

    @property
    def range(self) -> tuple[float, float]:
        """Lowest and highest value that it can have."""
        return RANGES.get(self.unit, (0.0, math.inf))


def at_path(facts: Any, path: str) -> Any:
    """``run.step_ns.value`` of ``facts``; None where a part of the path is None."""
    for name in path.split("."):
        if facts is None:
            return None
        facts = getattr(facts, name)
    return facts


def run_facts(run: TrainingRun, row: ScalingRow | None = None, *, drop_epochs: int = 1) -> SimpleNamespace:
    """What the figures of a run are taken from. row: its speed-up; None: there is none.

    scaled: how it is compared with its baseline, None for the baseline itself. target: the highest accuracy with a time.
    """
    return SimpleNamespace(
        run=run,
        row=row,
        steps=None if run.epochs_asked is not None or run.step_ns is None else run.step_ns.n,
        epochs=len(run.epochs) or None,
        dropped_epochs=dropped_epochs(run, drop_epochs) if run.epochs else None,
        epoch=epoch_time(run, drop_epochs),
        train_loss=train_loss(run),
        best_accuracy=best_accuracy(run),
        scaling=run.scaling if row is None or row.scaling is None else row.scaling,
        scaled=None if run.baseline_id in (None, run.run_id) else run.scaling,
        target=row.targets[-1] if row is not None and row.targets else None,
    )


def _real_epoch(facts: Any) -> Measured | None:
    epoch: Measured | None = None if facts.run.epoch_estimated else facts.epoch
    return epoch


def _epoch_exposed(facts: Any) -> float | None:
    exposed: float | None = facts.run.settings.get(PER_EPOCH)
    return exposed


def _speedup_of(facts: Any) -> Measured | None:
    return facts.row and Measured(value=facts.row.speedup, low=facts.row.low, high=facts.row.high)


def _call_time(row: Any) -> Measured | None:
    return None if row.time_ns is None else Measured(value=row.time_ns, low=row.time_ns_low, high=row.time_ns_high)


def _part_total_ns(summary: Any, name: str) -> float:
    total: float = sum(getattr(rank.budget.parts, name) for rank in summary.ranks if rank.budget is not None)
    return total


def _share_getter(part: str, whole: str = "window_ns") -> Callable[[Any], float | None]:
    """Return a function that gives a part's share of the whole: sums over ranks before the ratio."""

    def value(summary: Any) -> float | None:
        total = _part_total_ns(summary, whole)
        return _part_total_ns(summary, part) / total if total else None

    return value


def _longest_window(summary: Any) -> float | None:
    return max(summary.windows_ns.values(), default=None)


def _straggler_count(summary: Any) -> int | None:
    return None if summary.stragglers is None else len(summary.stragglers.stragglers)


def _finding_counter(severity: str | None = None) -> Callable[[Any], int]:
    def value(facts: Any) -> int:
        diagnosis: Diagnosis = facts.diagnosis
        return sum(severity in (None, finding.severity) for finding in diagnosis.findings)

    return value


def _largest_stake(facts: Any) -> float | None:
    stakes = (finding.stake_fraction for finding in facts.diagnosis.findings)
    return max((stake for stake in stakes if stake is not None), default=None)


def _lowest_getter(name: str) -> Callable[[Any], float | None]:
    def value(facts: Any) -> float | None:
        return min((getattr(row, name) for row in facts.evidence.scaling if not row.is_baseline), default=None)

    return value


def _of_wall(part: Any) -> Callable[[Any], float]:
    return lambda facts: float(facts.share(part))


def _figure_of(key: str, of: Of, unit: Unit, title: str, value: Any, text: str, **more: Any) -> Figure:
    better = {"better": BETTER[unit]} if unit in BETTER else {}
    return Figure(key=key, of=of, unit=unit, title=title, value=value, help=text, **(better | more))


FIGURES: tuple[Figure, ...] = (
    _figure_of("samples_per_s", "run", "per s", "samples/s", "run.samples_per_s",
            "global batch / median step", tested=True),
    _figure_of("step_ns", "run", "ns", "step", "run.step_ns", "median over timed steps of the slowest rank", tested=True),
    _figure_of("epoch_ns", "epoch", "ns", "epoch", _real_epoch, "median over steady epochs; no estimate", tested=True),
    _figure_of("exposed_comm_ns", "run", "ns", EXPOSED_COMM, "run.exposed_comm_ns",
            "of a step, median of the slowest rank", short="comm"),
    _figure_of("epoch_exposed_comm_ns", "epoch", "ns", f"{EXPOSED_COMM} of an epoch", _epoch_exposed,
            "mean after the first epoch, as the source timed it"),
    _figure_of("peak_memory_bytes", "run", "bytes", "peak memory", "run.peak_memory_bytes",
            "largest peak over the ranks", short="mem"),
    _figure_of("train_loss", "run", "loss", "training loss", "train_loss",
            "of the run, else of its last epoch", short="loss"),
    _figure_of("test_accuracy", "run", "fraction", "test accuracy", "run.test_accuracy",
            "after the last epoch, on the test split", better="high"),
    _figure_of("best_accuracy", "run", "fraction", "best accuracy", "best_accuracy",
            "best validation accuracy of any epoch, else of the end", short="acc'y", better="high", compared=False),
    _figure_of("comm_bytes_per_step", "run", "bytes", "bytes/step", "run.comm_bytes_per_step",
            "payload of one rank and optimizer step", compared=False),
    _figure_of("speedup", "run", "ratio", "speed-up", _speedup_of,
            "throughput over the baseline's", short="speed", compared=False),
    _figure_of("efficiency", "run", "ratio", "efficiency", "row.efficiency",
            "speed-up / (ranks / baseline's ranks)", short="eff", compared=False),
    _figure_of("mfu", "run", "fraction", "MFU", "run.mfu",
            "model FLOP / (step x ranks x dense peak)", better="high", compared=False),
    _figure_of("hfu", "run", "fraction", "HFU", "run.hfu",
            "MFU with the FLOP that checkpointing computes again", better="high", compared=False),
    _figure_of("comm_time_ns", "collective", "ns", "time", _call_time,
            "of one call, median over calls of the slowest rank"),
    _figure_of("trace_step_ns", "step", "ns", "step", "whole", "traced step, of the slowest rank"),
    _figure_of("trace_exposed_comm_ns", "step", "ns", EXPOSED_COMM, "communication",
            "of a traced step, of the rank with most"),
    _figure_of("trace_idle_ns", "step", "ns", "idle", "idle", "of a traced step, of the rank with most"),
    _figure_of("diary_step_ns", "steps", "ns", "step", "step",
            "median of all timed steps of the slowest rank, without what is outside"),
    *(
        _figure_of(f"diary_{part.column}", "steps", "ns", part.title, part.key,
                "mean over steps and ranks")
        for part in STEP
        if part.column is not None and part.figure
    ),
    _figure_of("diary_outside_ns", "steps", "ns", "outside the steps", "outside", "mean over all steps after the first"),
    _figure_of("input_fraction", "shares", "fraction", TITLES["data"], "data",
            "of all timed steps of a job's diary, all ranks", better="low", compared=False),
    _figure_of("computation_fraction", "shares", "fraction", "computation",
            " ".join(COMPUTATION),
            f"of the same: {', '.join(map(TITLES.__getitem__, COMPUTATION))}",
            better="high", compared=False),
    _figure_of("optimizer_fraction", "shares", "fraction", "optimizer", "optimizer",
            "of the same", better="low", compared=False),
    _figure_of("communication_fraction", "shares", "fraction", "communication", "transfer waiting",
            "of the same: exposed transfer, and waiting for other ranks", better="low", compared=False),
    _figure_of("waiting_fraction", "shares", "fraction", "waiting for ranks", "waiting",
            "of the same: communication beyond that of the last rank", better="low", compared=False),
    _figure_of("outside_fraction", "shares", "fraction", "outside the steps", "outside",
            "of the wall time after the first step: evaluation, rollouts, checkpoints, loader workers that start",
            better="low", compared=False),
    _figure_of("host_memory_bytes", "memory", "bytes", "host memory", "host",
            "resident, of the rank of a job with most, at the last sample", compared=False),
    _figure_of("host_growth_bytes", "memory", "bytes", "host memory per step", "host_growth",
            "by which its floor grows, of the fastest rank; 0 where it levels off", compared=False),
    _figure_of("device_memory_bytes", "memory", "bytes", "device memory", "device",
            "reserved by torch, of the rank with most, at the last sample", compared=False),
    _figure_of("device_growth_bytes", "memory", "bytes", "device memory per step", "device_growth",
            "by which what torch has allocated grows, of the fastest rank; 0 where it levels off", compared=False),
    _figure_of("device_used_bytes", "hardware", "bytes", "device memory in use", "device_used",
            "of the device with most, by all processes, at the last sample, as the driver reports it", compared=False),
    _figure_of("sm_clock_fraction", "hardware", "fraction", "SM clock", "clock",
            "of its maximum while the GPU computes: median of samples, of the slowest GPU", better="high", compared=False),
    _figure_of("ecc_corrected_errors", "hardware", "count", "corrected ECC errors", "ecc_corrected",
            "of all GPUs since their first samples", compared=False),
    _figure_of("ecc_uncorrected_errors", "hardware", "count", "uncorrected ECC errors", "ecc_uncorrected",
            "of all GPUs since their first samples", compared=False),
    _figure_of("link_errors", "hardware", "count", "link errors", "links",
            "of NVLink, PCIe and, of the job, network ports since their first samples; no packets dropped", compared=False),
    _figure_of("dropped_packets", "hardware", "count", "dropped packets", "drops",
            "by the network ports since their first samples, with those that were not for the host", compared=False),
    _figure_of("goodput_fraction", "wall", "fraction", "goodput", _of_wall("productive"),
            "of the wall time: steps that were kept, each up to what is named below", better="high"),
    _figure_of("start_up_fraction", "wall", "fraction", "start-up", _of_wall("start_up"),
            "of the wall time: from the start of the first process to its first step", better="low"),
    _figure_of("warm_up_fraction", "wall", "fraction", "warm-up", _of_wall("warm_up"),
            "of the wall time: of the first steps of each attempt, what they take beyond the usual step", better="low"),
    _figure_of("compilation_fraction", "wall", "fraction", "compilation", _of_wall("compilation"),
            "of the wall time: torch.compile, beyond the usual step", better="low"),
    _figure_of("evaluation_fraction", "wall", "fraction", "evaluation", _of_wall("evaluation"),
            "of the wall time: on the rank that evaluates longest", better="low"),
    _figure_of("inference_fraction", "wall", "fraction", TITLES["inference"], _of_wall("inference"),
            "of the wall time: forward passes without gradients between steps, no evaluation (rollouts)", better="low"),
    _figure_of("checkpoint_fraction", "wall", "fraction", "checkpoint", _of_wall("checkpoint"),
            "of the wall time: blocking saves, on the rank that saves longest", better="low"),
    _figure_of("loader_start_fraction", "wall", "fraction", "loader workers start", _of_wall("loader_start"),
            "of the wall time: workers of an epoch, from the end of the epoch before to their first batch", better="low"),
    _figure_of("garbage_collection_fraction", "wall", "fraction", "garbage collection", _of_wall("garbage_collection"),
            "of the wall time: of Python, beyond the usual step", better="low"),
    _figure_of("data_stall_fraction", "wall", "fraction", "data stalls", _of_wall("data_stall"),
            "of the wall time: of steps far longer than usual, waiting for data beyond the usual wait", better="low"),
    _figure_of("pause_fraction", "wall", "fraction", "other long steps", _of_wall("pause"),
            "of the wall time: of steps far longer than usual, what nothing else here explains", better="low"),
    _figure_of("profiler_fraction", "wall", "fraction", "profiler", _of_wall("profiler"),
            "of the wall time: profiled steps beyond the usual step, and writing their traces", better="low"),
    _figure_of("restart_fraction", "wall", "fraction", "restarts", _of_wall("restart"),
            "of the wall time: from the last step of an attempt to the first of the next one", better="low"),
    _figure_of("repeated_fraction", "wall", "fraction", "steps lost", _of_wall("repeated"),
            "of the wall time: productive steps after the last checkpoint of an attempt that was restarted", better="low"),
    _figure_of("hang_fraction", "wall", "fraction", "hang", _of_wall("hang"),
            "of the wall time: from the last step on, in a job that makes no progress", better="low"),
    _figure_of("end_fraction", "wall", "fraction", "end", _of_wall("end"),
            "of the wall time: from the last step to the end of the last process", better="low"),
    _figure_of("step_ns", "rank", "ns", "step", "window", "median over the traced steps of a rank, as its parts"),
    _figure_of("compute_ns", "rank", "ns", "compute", "compute", "covered by computation"),
    _figure_of("exposed_comm_ns", "rank", "ns", EXPOSED_COMM, "exposed_comm",
            "communication under no computation"),
    _figure_of("exposed_memory_ns", "rank", "ns", TITLES["copies"], "exposed_memory", "copies under neither"),
    _figure_of("idle_ns", "rank", "ns", "idle", "idle", "nothing runs"),
    _figure_of("comm_ns", "rank", "ns", "communication", "comm", "covered by communication"),
    _figure_of("memory_ns", "rank", "ns", "copies", "memory", "covered by copies"),
    _figure_of("overlap_ns", "rank", "ns", "hidden communication", "overlap",
            "communication under computation", better="high", because="what is hidden costs the step nothing"),
    _figure_of("window_ns", "job", "ns", "window", _longest_window, "of the rank with the longest"),
    _figure_of("compute_fraction", "job", "fraction", "compute", _share_getter("compute_ns"),
            "of the windows of all ranks", better="high"),
    _figure_of("exposed_comm_fraction", "job", "fraction", EXPOSED_COMM, _share_getter("exposed_comm_ns"),
            "of the windows of all ranks", better="low"),
    _figure_of("exposed_memory_fraction", "job", "fraction", TITLES["copies"], _share_getter("exposed_memory_ns"),
            "of the windows of all ranks", better="low"),
    _figure_of("idle_fraction", "job", "fraction", "idle", _share_getter("idle_ns"), "of the windows of all ranks",
            better="low"),
    _figure_of("hidden_fraction", "job", "fraction", "hidden communication", _share_getter("overlap_ns", "comm_ns"),
            "of all communication", better="high"),
    _figure_of("comm_ns", "job", "ns", "communication", lambda summary: _part_total_ns(summary, "comm_ns"),
            "sum over ranks"),
    _figure_of("straggler_count", "job", "count", "stragglers", _straggler_count, "ranks that others wait for"),
    _figure_of("dry_step_ns", "dry", "ns", "step", "step_ns", "of a dry run, as it is priced"),
    _figure_of("dry_tokens_per_s", "dry", "per s", "tokens/s", "tokens_per_s", "of the whole job of a dry run"),
    _figure_of("dry_memory_bytes", "dry", "bytes", "memory", lambda step: round(step.memory.needs_bytes),
            "of one GPU of a dry run at its peak, with context and fragmentation"),
    _figure_of("dry_exposed_comm_ns", "dry", "ns", EXPOSED_COMM, "exposed_ns", "of a dry run's step"),
    _figure_of("dry_mfu", "dry", "fraction", "MFU", "mfu", "of a dry run: model FLOP / (step x dense peak)", better="high"),
    _figure_of("problem_count", "diagnosis", "count", "problems", _finding_counter("problem"), "findings of that severity"),
    _figure_of("warning_count", "diagnosis", "count", "warnings", _finding_counter("warning"), "findings of that severity"),
    _figure_of("finding_count", "diagnosis", "count", "findings", _finding_counter(), "of any severity"),
    _figure_of("largest_stake_fraction", "diagnosis", "fraction", "largest stake", _largest_stake,
            "share of the step that a finding could win", better="low"),
    _figure_of("lowest_speedup", "diagnosis", "ratio", "lowest speed-up", _lowest_getter("speedup"),
            "of all runs with a baseline"),
    _figure_of("lowest_efficiency", "diagnosis", "ratio", "lowest efficiency", _lowest_getter("efficiency"),
            "of all runs with a baseline"),
)  # fmt: skip
"""All figures in the order in which they are shown."""


def figures_of(*of: Of) -> dict[str, Figure]:
    """Return the figures of these kinds by key, in order."""
    return {figure.key: figure for figure in FIGURES if figure.of in of}


COMPARED = {
    key: figure
    for key, figure in figures_of("run", "epoch", "collective", "step", "steps", "wall", "dry").items()
    if figure.compared
}
"""What ``compare`` and its ``--fail-if`` know, by key."""
