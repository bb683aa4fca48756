"""The figures of one run, each defined here and nowhere else: time of an epoch, best accuracy, training loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepscope.records.training import Epoch, Measured, TrainingRun
from stepscope.stats.order import Interval, median, median_interval


def timed_epochs(run: TrainingRun) -> list[Epoch]:
    """Epochs whose time is known."""
    return [e for e in run.epochs if e.duration_ns is not None and e.duration_ns > 0]


def steady_epochs(run: TrainingRun, drop_epochs: int = 1) -> list[Epoch]:
    """Timed epochs after warm-up: those without warm-up steps where the source says which have some, else those after the
    first ``drop_epochs``. All of them, where none would remain.
    """
    timed = timed_epochs(run)
    if any(e.warmup is not None for e in timed):
        return [e for e in timed if not e.warmup] or timed
    return timed[drop_epochs:] or timed


def steady_times(run: TrainingRun, drop_epochs: int = 1) -> tuple[float, ...]:
    """Durations (ns) of the steady epochs."""
    return tuple(e.duration_ns for e in steady_epochs(run, drop_epochs) if e.duration_ns is not None)


def epoch_time(run: TrainingRun, drop_epochs: int = 1) -> Measured | None:
    """Time of one epoch (ns): the median over the steady epochs; without any, what the source says or steps make it.

    Interval: 95% of the median, from six epochs on; of fewer their range, of one none.
    """
    times = steady_times(run, drop_epochs)
    if not times:
        return run.epoch_ns
    interval = _interval(times)
    return Measured(
        value=median(times),
        low=None if interval is None else interval.low,
        high=None if interval is None else interval.high,
        n=len(times),
    )


def _interval(times: Sequence[float]) -> Interval | None:
    found = median_interval(times)
    return Interval(min(times), max(times)) if found is None and len(times) > 1 else found


def dropped_epochs(run: TrainingRun, drop_epochs: int) -> int:
    """How many epochs the time of an epoch leaves out."""
    return len(timed_epochs(run)) - len(steady_epochs(run, drop_epochs))


def too_short(run: TrainingRun, drop_epochs: int) -> bool:
    """Whether the first ``drop_epochs`` would be left out, and are kept because no others are there."""
    timed = timed_epochs(run)
    return 0 < len(timed) <= drop_epochs and all(e.warmup is None for e in timed)


def best_accuracy(run: TrainingRun, *, epochs: int | None = None) -> float | None:
    """Best validation accuracy of the first ``epochs`` epochs (None: all); where no epoch has one, that of the end."""
    known = [e.validation_accuracy for e in run.epochs[:epochs] if e.validation_accuracy is not None]
    return max(known) if known else run.test_accuracy if epochs is None else None


def train_loss(run: TrainingRun) -> float | None:
    """Training loss of the run, else of its last epoch that has one."""
    if run.train_loss is not None:
        return run.train_loss
    return next((e.train_loss for e in reversed(run.epochs) if e.train_loss is not None), None)


def exposed_fraction(run: TrainingRun) -> float | None:
    """Exposed communication as a share of the step, medians of both; None where it is longer than the step, which is no
    share (`impossible-figures` says so)."""
    step, comm = run.step_ns, run.exposed_comm_ns
    return None if step is None or comm is None or not 0 <= comm.value <= step.value > 0 else comm.value / step.value


def setting(known: Mapping[str, Any], *names: str) -> Any:
    """The first of ``names`` that is known, under that name or as the last part of a dotted one; None: not known."""
    for name in names:
        for key, value in known.items():
            if value is not None and (key == name or key.rpartition(".")[2] == name):
                return value
    return None


LEARNING_RATE = ("lr", "learning_rate")


def learning_rate(run: TrainingRun) -> float | None:
    """The learning rate that the settings tell; None where they do not, or no number."""
    value = setting(run.settings, *LEARNING_RATE)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
