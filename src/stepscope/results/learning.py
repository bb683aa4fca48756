"""What a run learns over its epochs, and when it reaches an accuracy: the speed-up that counts beside that of an epoch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from stepscope.records.training import TargetTime, TrainingRun
from stepscope.results.figures import best_accuracy, setting
from stepscope.stats.order import mad

_ROUND, _FINE = (
    20,
    100,
)  # targets are multiples of 1/20 and 1/100: no run is picked by the last digit of its luck
_TINY = 1e-9

_LEAST_CHANGES = 4
"""Changes between epochs that a spread is made of; of fewer it says nothing."""


def target_times(run: TrainingRun, base: TrainingRun, targets: Sequence[float] = ()) -> tuple[TargetTime, ...]:
    """Times of ``run`` and ``base`` to each accuracy, lowest first; empty where either has no accuracy by epoch.

    Without ``targets``: the highest multiple of 0.05 and of 0.01 that both reach, and the lowest multiple of 0.01 that
    ``base`` reaches and ``run``, trained for no fewer epochs than that took, does not.
    """
    if not _by_epoch(run) or not _by_epoch(base):
        return ()
    wanted = sorted(set(targets)) if targets else default_targets(run, base)
    return tuple(_target(run, base, accuracy) for accuracy in wanted)


def default_targets(run: TrainingRun, base: TrainingRun) -> tuple[float, ...]:
    """The accuracies that say most about ``run`` against ``base``; see :func:`target_times`."""
    best, base_best = best_accuracy(run), best_accuracy(base)
    if best is None or base_best is None:
        return ()
    both = min(best, base_best)
    found = {_down(both, _ROUND), _down(both, _FINE)} - {0.0}
    missed = (math.floor(best * _FINE + _TINY) + 1) / _FINE
    needed = _reached(base, missed)[0]
    if needed is not None and len(run.epochs) >= needed:
        found.add(missed)
    return tuple(sorted(found))


def _by_epoch(run: TrainingRun) -> bool:
    """Whether accuracies and their order can be used: a file that two jobs wrote has no order."""
    return not run.settings.get("duplicate_epochs") and any(e.validation_accuracy is not None for e in run.epochs)


def _target(run: TrainingRun, base: TrainingRun, accuracy: float) -> TargetTime:
    epochs, time_ns = _reached(run, accuracy)
    base_epochs, base_ns = _reached(base, accuracy)
    return TargetTime(
        accuracy=accuracy,
        reached_epochs=epochs,
        time_ns=time_ns,
        baseline_reached_epochs=base_epochs,
        baseline_time_ns=base_ns,
        speedup=base_ns / time_ns if time_ns and base_ns is not None else None,
    )


def _reached(run: TrainingRun, accuracy: float) -> tuple[int | None, float | None]:
    """Epochs until the accuracy is first reached, and their time (None: not all of them are timed)."""
    total: float | None = 0.0
    for count, epoch in enumerate(sorted(run.epochs, key=lambda e: e.number), start=1):
        total = None if total is None or epoch.duration_ns is None else total + epoch.duration_ns
        if epoch.validation_accuracy is not None and epoch.validation_accuracy >= accuracy - _TINY:
            return count, total
    return None, None


def _down(value: float, parts: int) -> float:
    return math.floor(value * parts + _TINY) / parts


def losses(run: TrainingRun) -> dict[int, float]:
    """Training loss by epoch (0: the first of the training), by its number, whatever row it stands in.

    Epochs without a finite loss are left out; empty where two jobs wrote the epochs, of which nobody knows whose is whose.
    A source that has an epoch 0 counts from 0, others from 1.
    """
    if run.settings.get("duplicate_epochs"):
        return {}
    start = min([1, *(e.number for e in run.epochs)])
    return {
        e.number - start: e.train_loss for e in run.epochs if e.train_loss is not None and math.isfinite(e.train_loss)
    }


def accuracy_noise(run: TrainingRun) -> float | None:
    """Standard deviation of the validation accuracy of one epoch, without its trend; None: too few epochs.

    From the changes between neighbouring epochs of the second half, where training has settled: their median absolute
    deviation x 1.4826 / sqrt(2), since a change carries the noise of two epochs.
    """
    ordered = sorted(run.epochs, key=lambda e: e.number)
    known = [e.validation_accuracy for e in ordered if e.validation_accuracy is not None]
    changes = [after - before for before, after in pairwise(known[len(known) // 2 :])]
    return mad(changes) / math.sqrt(2) if len(changes) >= _LEAST_CHANGES else None


def epochs_to_loss(run: TrainingRun, loss: float) -> int | None:
    """Epochs until the training loss is first at or below ``loss``; None: it never is."""
    return next((at + 1 for at, value in sorted(losses(run).items()) if value <= loss), None)


def lossy(run: TrainingRun) -> bool:
    """Whether gradients are rounded or compressed on the way: its curve need not be that of exact ones."""
    hook = run.strategy_options.get("hook") or setting(run.settings, "hook")
    return (hook is not None and hook != "none") or any(
        word in (run.strategy or "").lower() for word in ("hook=", "fp16", "bf16", "powersgd")
    )
