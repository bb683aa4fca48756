"""What one run took and learned, each number defined once: time of an epoch, best accuracy, training loss.

MFU of a training run: model FLOP per step / (step time x ranks x dense peak of the precision).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Any

from stepscope.core.errors import Unavailable
from stepscope.records.nouns import Measured
from stepscope.records.training import Epoch, TrainingRun
from stepscope.stats.order import median, median_interval

if TYPE_CHECKING:
    from stepscope.records.training import TrainingRun


def timed_epochs(run: TrainingRun) -> list[Epoch]:
    """Epochs whose time is known."""
    return [e for e in run.epochs if e.duration_ns is not None and e.duration_ns > 0]


def first_epochs(run: TrainingRun, count: int) -> frozenset[int]:
    """Numbers of the first ``count`` epochs that are timed; a file that two jobs wrote has rows of each number twice."""
    return frozenset(sorted({e.number for e in timed_epochs(run)})[:count])


def steady_epochs(run: TrainingRun, drop_epochs: int = 1) -> list[Epoch]:
    """Timed epochs after the first ``drop_epochs``, by number, without those in which warm-up steps lie where the source
    says which: there 1, the default, leaves out no other. Where none would remain: those without warm-up steps, else all.
    """
    timed, first = timed_epochs(run), first_epochs(run, drop_epochs)
    warm = [e for e in timed if not e.warmup]
    if drop_epochs == 1 and any(e.warmup is not None for e in timed):
        return warm or timed
    return [e for e in warm if e.number not in first] or warm or timed


def steady_times(run: TrainingRun, drop_epochs: int = 1) -> tuple[float, ...]:
    """Durations (ns) of the steady epochs."""
    return tuple(e.duration_ns for e in steady_epochs(run, drop_epochs) if e.duration_ns is not None)


def epoch_time(run: TrainingRun, drop_epochs: int = 1) -> Measured | None:
    """Time of one epoch (ns): the median over the steady epochs; without any, what the source says or steps make it.

    Interval: 95% of the median, from six epochs on; of fewer their range, of one none. None where two trainings wrote one
    file at the same time: a median over both is of neither.
    """
    if written_by_several(run):
        return None
    times = steady_times(run, drop_epochs)
    if not times:
        return run.epoch_ns
    ends = median_interval(times) or ((min(times), max(times)) if len(times) > 1 else None)
    return Measured.between(median(times), ends, n=len(times))


def per_second(time: Measured, amount: float) -> Measured:
    """Return ``amount`` a second from a time in ns, with the interval turned over: a long time is a low rate."""
    time_ns = time if time.low and time.high else Measured(value=time.value, n=time.n)
    return time_ns.mapped(lambda ns: amount / (ns / 1e9))


def dropped_epochs(run: TrainingRun, drop_epochs: int) -> int:
    """How many epochs the time of an epoch leaves out."""
    return len(timed_epochs(run)) - len(steady_epochs(run, drop_epochs))


def too_short(run: TrainingRun, drop_epochs: int) -> bool:
    """Whether the first ``drop_epochs`` would be left out, and are kept because no others are there."""
    first = first_epochs(run, drop_epochs)
    return (
        bool(first)
        and len(steady_epochs(run, drop_epochs)) == len(timed_epochs(run))
        and all(e.warmup is None for e in run.epochs)
    )


def epochs_mixed(run: TrainingRun) -> bool:
    """Whether the epochs of several trainings stand in one file: some twice, or in falling order (`two-writers`)."""
    numbers = [epoch.number for epoch in run.epochs]
    return bool(run.settings.get("duplicate_epochs")) or any(after <= before for before, after in pairwise(numbers))


def written_by_several(run: TrainingRun) -> bool:
    """Whether rows of several trainings alternate in one file: no row says whose it is."""
    return run.settings.get("epoch_series_alternate") is True


def best_accuracy(run: TrainingRun, *, epochs: int | None = None) -> float | None:
    """Best validation accuracy of the first ``epochs`` epochs (None: all); where no epoch has one, that of the end. None
    where two trainings wrote one file at the same time."""
    if written_by_several(run):
        return None
    wanted = sorted(run.epochs, key=lambda e: e.number)[:epochs]
    accuracies = [e.validation_accuracy for e in wanted if e.validation_accuracy is not None]
    return max(accuracies) if accuracies else run.test_accuracy if epochs is None else None


def train_loss(run: TrainingRun) -> float | None:
    """Training loss of the run, else of its last epoch that has one."""
    if run.train_loss is not None:
        return run.train_loss
    with_loss = [e for e in run.epochs if e.train_loss is not None]
    return max(with_loss, key=lambda e: e.number).train_loss if with_loss else None


PER_EPOCH = "exposed_comm_ns_per_epoch"
"""Setting of a run whose source timed communication by epoch and does not say how many steps that is: the mean after the
first epoch, as ``steady_times``."""


def exposed_fraction(run: TrainingRun) -> float | None:
    """Exposed communication as a share of the step, medians of both; of the epoch, means of both, where only that was
    timed. None where it is longer than the step, which is no share (`impossible-figures` says so)."""
    if run.exposed_comm_ns is not None and run.step_ns is not None:
        return _plausible_share(run.exposed_comm_ns.value, run.step_ns.value)
    per_epoch, times = run.settings.get(PER_EPOCH), steady_times(run)
    return _plausible_share(float(per_epoch), fmean(times)) if isinstance(per_epoch, (int, float)) and times else None


def _plausible_share(part: float, whole: float) -> float | None:
    return part / whole if 0 <= part <= whole and whole > 0 else None


def setting(settings: Mapping[str, Any], *names: str) -> Any:
    """Return the value of the first of ``names`` that is set, under that name or as the last part of a dotted one; None:
    none is."""
    for name in names:
        for key, value in settings.items():
            if value is not None and (key == name or key.rpartition(".")[2] == name):
                return value
    return None


LEARNING_RATE = ("lr", "learning_rate")


def learning_rate(run: TrainingRun) -> float | None:
    """The learning rate that the settings tell; None where they do not, or no number."""
    value = setting(run.settings, *LEARNING_RATE)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


_TYPES = {"fp32": "fp32", "tf32": "tf32", "bf16": "bf16", "amp_bf16": "bf16", "amp_fp16": "fp16"}
"""Precision of a cell -> type in which it multiplies."""


def mfu(run: TrainingRun) -> float | Unavailable:
    """Return the MFU of the median step, or why it is unknown: FLOP, step time or peak are. Above 1, one of them is
    wrong."""
    if run.mfu is not None:
        return run.mfu
    if run.model_flop is None or run.step_ns is None or not run.world_size:
        return Unavailable("the model's FLOP, the ranks or the step time are unknown")
    if run.hardware is None:
        return Unavailable("the device has no name")
    from stepscope.machine.peaks.lookup import find

    entry = find(run.hardware)
    if isinstance(entry, Unavailable):
        return Unavailable(f"peak unknown: {entry.reason}")
    peak = entry.peak(_TYPES.get(run.precision or "", run.precision or "unknown"))
    if isinstance(peak, Unavailable):
        return Unavailable(f"peak unknown: {peak.reason}")
    return run.model_flop / (run.step_ns.value / 1e9 * run.world_size * peak)
