"""Learning curves of two runs side by side: losses and accuracies by epoch."""

from __future__ import annotations

import math
from itertools import pairwise

from stepscope.records.training import TrainingRun
from stepscope.stats.order import mad

_LEAST_CHANGES = 4
"""Changes between epochs that a spread is made of; of fewer it says nothing."""


def losses(run: TrainingRun) -> dict[int, float]:
    """Training loss by place of the epoch (0: the first); epochs without a finite one are left out."""
    return {
        at: e.train_loss for at, e in enumerate(run.epochs) if e.train_loss is not None and math.isfinite(e.train_loss)
    }


def accuracy_noise(run: TrainingRun) -> float | None:
    """Standard deviation of the validation accuracy of one epoch, without its trend; None: too few epochs.

    From the changes between neighbouring epochs of the second half, where training has settled: their median absolute
    deviation x 1.4826 / sqrt(2), since a change carries the noise of two epochs.
    """
    known = [e.validation_accuracy for e in run.epochs if e.validation_accuracy is not None]
    changes = [after - before for before, after in pairwise(known[len(known) // 2 :])]
    return mad(changes) / math.sqrt(2) if len(changes) >= _LEAST_CHANGES else None


def epochs_to_loss(run: TrainingRun, loss: float) -> int | None:
    """Epochs until the training loss is first at or below ``loss``; None: it never is."""
    return next((at + 1 for at, value in sorted(losses(run).items()) if value <= loss), None)
