"""Does a run learn as much as its baseline in as many epochs? Without that, its speed-up is one of other work."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stepscope.records.training import TrainingRun
from stepscope.results.data_use import MADE_UP
from stepscope.results.figures import best_accuracy, setting
from stepscope.results.learning import accuracy_noise

MIN_NOISES = 2.0
"""Standard deviations of one epoch's accuracy, of both runs together, from which on a lower accuracy is a loss."""

MIN_LOST = 0.005
"""A loss of accuracy below this is none, however little the epochs vary."""

OTHER_WORK = 0.05
"""A loss from which on the run did other work than its baseline; the limit where too few epochs show what chance does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Best validation accuracies over the first ``epochs`` epochs of both (None: one figure each, of the end).

    noise: standard deviation that chance gives their difference; None: too few epochs to know.
    """

    epochs: int | None
    best: float
    base_best: float
    noise: float | None

    @property
    def lost(self) -> float:
        return self.base_best - self.best

    @property
    def limit(self) -> float:
        return OTHER_WORK if self.noise is None else max(MIN_LOST, MIN_NOISES * self.noise)

    @property
    def is_lower(self) -> bool:
        """Whether the run is worse by more than chance explains."""
        return self.lost > self.limit

    @property
    def is_other_work(self) -> bool:
        """Whether it is so much worse that a speed-up over the baseline compares different work."""
        return self.lost > max(self.limit, OTHER_WORK)


def quality(run: TrainingRun, base: TrainingRun) -> Quality | None:
    """Accuracy of ``run`` against ``base`` at equal epochs; None where their accuracies cannot be compared.

    That is: none known, random labels, epochs of two writers, or figures of the end of runs that may differ in length.
    """
    if _says_nothing(run) or any(each.settings.get("duplicate_epochs") for each in (run, base)):
        return None
    epochs = min(len(run.epochs), len(base.epochs)) or None
    if epochs is None and (run.workload is not None or run.epochs or base.epochs):
        return None
    best, base_best = best_accuracy(run, epochs=epochs), best_accuracy(base, epochs=epochs)
    if best is None or base_best is None or not all(0 <= each <= 1 for each in (best, base_best)):
        return None
    noise, base_noise = accuracy_noise(run), accuracy_noise(base)
    both = None if noise is None or base_noise is None else math.hypot(noise, base_noise)
    return Quality(epochs=epochs, best=best, base_best=base_best, noise=both)


def _says_nothing(run: TrainingRun) -> bool:
    """Random labels: their accuracy is one in so many classes, whatever is learned."""
    made_up = run.dataset is not None and run.dataset.lower().startswith(MADE_UP)
    return made_up and setting(run.settings, "labels") != "teacher"
