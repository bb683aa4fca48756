"""What a run learned, from which data, and whether that equals what its baseline learned.

Time to an accuracy is the speed-up that counts beside that of an epoch; a speed-up of ranks that share no data, or at a
lower accuracy, is one of other work.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from stepscope.core.dataclass import record
from stepscope.records.nouns import Scaling
from stepscope.records.training import TargetTime, TrainingRun
from stepscope.results.epochs import best_accuracy, learning_rate, setting
from stepscope.stats.order import mad

_ROUND, _FINE = 20, 100  # targets are multiples of 1/20 and 1/100, which no last digit of luck picks
_TINY = 1e-9

_LEAST_CHANGES = 4
"""Changes between epochs that a spread is made of; of fewer it says nothing."""


def target_times(run: TrainingRun, base: TrainingRun, targets: Sequence[float] = ()) -> tuple[TargetTime, ...]:
    """Return the times of ``run`` and ``base`` to each accuracy, lowest first; empty where either has no accuracy by epoch.

    Without ``targets``: the highest multiple of 0.05 and of 0.01 that both reach, and the lowest multiple of 0.01 that
    ``base`` reaches and ``run``, trained for no fewer epochs than that took, does not.
    """
    if not _by_epoch(run) or not _by_epoch(base):
        return ()
    wanted = sorted(set(targets)) if targets else default_targets(run, base)
    return tuple(_target_time(run, base, accuracy) for accuracy in wanted)


def default_targets(run: TrainingRun, base: TrainingRun) -> tuple[float, ...]:
    """The accuracies that say most about ``run`` against ``base``; see :func:`target_times`."""
    best, base_best = best_accuracy(run), best_accuracy(base)
    if best is None or base_best is None:
        return ()
    both = min(best, base_best)
    targets = {_rounded_down(both, _ROUND), _rounded_down(both, _FINE)} - {0.0}
    missed = (math.floor(best * _FINE + _TINY) + 1) / _FINE
    needed = _epochs_and_ns_to(base, missed)[0]
    if needed is not None and len(run.epochs) >= needed:
        targets.add(missed)
    return tuple(sorted(targets))


def _by_epoch(run: TrainingRun) -> bool:
    """Whether accuracies and their order can be used: a file that two jobs wrote has no order."""
    return not run.settings.get("duplicate_epochs") and any(e.validation_accuracy is not None for e in run.epochs)


def _target_time(run: TrainingRun, base: TrainingRun, accuracy: float) -> TargetTime:
    """Return when run and baseline reached an accuracy, in epochs and ns, and the ratio of the times."""
    epochs, time_ns = _epochs_and_ns_to(run, accuracy)
    base_epochs, base_ns = _epochs_and_ns_to(base, accuracy)
    return TargetTime(
        accuracy=accuracy,
        reached_epochs=epochs,
        time_ns=time_ns,
        baseline_reached_epochs=base_epochs,
        baseline_time_ns=base_ns,
        speedup=base_ns / time_ns if time_ns and base_ns is not None else None,
    )


def _epochs_and_ns_to(run: TrainingRun, accuracy: float) -> tuple[int | None, float | None]:
    """Return the epochs until the accuracy is first reached, and their time (None: not all of them are timed)."""
    total: float | None = 0.0
    for count, epoch in enumerate(sorted(run.epochs, key=lambda e: e.number), start=1):
        total = None if total is None or epoch.duration_ns is None else total + epoch.duration_ns
        if epoch.validation_accuracy is not None and epoch.validation_accuracy >= accuracy - _TINY:
            return count, total
    return None, None


def _rounded_down(value: float, parts: int) -> float:
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
    accuracies = [e.validation_accuracy for e in ordered if e.validation_accuracy is not None]
    changes = [after - before for before, after in pairwise(accuracies[len(accuracies) // 2 :])]
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


MADE_UP = ("synthetic", "random", "dummy", "fake")
"""Beginnings of the names of data sets that may grow with the ranks: their name does not fix their size."""

SEEN_TOO_OFTEN = 1.5
"""Samples of an epoch over all ranks / data set size, from which on samples are trained on more than once."""

LOSS_LOWER = 0.10
"""How much lower the first epoch's loss must be on n ranks, relative to the baseline's, to count as lower."""

TIME_KEPT = 0.9
"""Epoch time on n ranks / the baseline's, from which on it has not fallen."""


@record
class FirstEpochs:
    """First epochs of a run and its baseline. loss_lower: 1 - loss / base_loss. time_ratio: of median epoch times.

    later: (epochs of the run, epochs that the baseline needs for the same loss), where the baseline gets there.
    """

    loss: float
    base_loss: float
    time_ratio: float
    later: tuple[int, int] | None

    @property
    def loss_lower(self) -> float:
        return 1.0 - self.loss / self.base_loss

    @property
    def duplicated(self) -> bool:
        """Whether the ranks learn what several passes teach, and take the time of a whole one."""
        return self.loss_lower >= LOSS_LOWER and self.time_ratio >= TIME_KEPT


def times_seen(run: TrainingRun) -> float | None:
    """How often a sample is trained on in an epoch: samples of all ranks / data set size; None: not counted."""
    if not run.dataset_size:
        return None
    if run.samples_seen_per_rank:
        return sum(run.samples_seen_per_rank) / run.dataset_size
    seen = [e.samples_seen for e in run.epochs if e.samples_seen is not None]
    return median(seen) / run.dataset_size if seen else None


def curves(run: TrainingRun, base: TrainingRun) -> FirstEpochs | None:
    """First epochs of a run and its baseline; None where they cannot show duplicated data.

    That is: no losses or times, another amount of data or another learning rate, or a smaller global batch (more updates
    teach more as well).
    """
    own_losses, base_losses = losses(run), losses(base)
    times = [e.duration_ns for e in run.epochs if e.duration_ns]
    base_times = [e.duration_ns for e in base.epochs if e.duration_ns]
    if (
        0 not in own_losses
        or 0 not in base_losses
        or not times
        or not base_times
        or base_losses[0] <= 0
        or own_losses[0] < 0
    ):
        return None
    if (
        (run.world_size or 0) <= (base.world_size or 0)
        or not same_data(run, base)
        or learning_rate(run) != learning_rate(base)
    ):
        return None
    if run.global_batch and base.global_batch and run.global_batch < base.global_batch:
        return None
    second = own_losses.get(1)
    needed = None if second is None else epochs_to_loss(base, second)
    return FirstEpochs(
        loss=own_losses[0],
        base_loss=base_losses[0],
        time_ratio=median(times) / median(base_times),
        later=None if needed is None else (2, needed),
    )


def duplicated(run: TrainingRun, base: TrainingRun) -> bool:
    """Whether the ranks of ``run`` train on the same data; counted samples decide before curves do."""
    seen = times_seen(run)
    if seen is not None:
        return seen >= SEEN_TOO_OFTEN and (run.world_size or 0) > 1
    first_epochs = curves(run, base)
    return first_epochs is not None and first_epochs.duplicated


def scaling_of(run: TrainingRun, base: TrainingRun) -> Scaling | None:
    """Return the kind of scaling as the run says it; else ``strong`` for the same global batch, ``weak`` for the same batch
    a rank and micro-step.

    None where the global batch has not grown with the ranks, either: some of them divide the model."""
    if run.scaling is not None:
        return run.scaling
    if run.global_batch is not None and run.global_batch == base.global_batch:
        return "strong"
    if run.micro_batch is not None and run.micro_batch == base.micro_batch:
        return "weak" if run.accumulation == base.accumulation and _batch_grew_with_ranks(run, base) else None
    return None


def _batch_grew_with_ranks(run: TrainingRun, base: TrainingRun) -> bool:
    """Whether the global batch is larger by as much as there are more ranks, as far as both are known."""
    if not (run.global_batch and base.global_batch and run.world_size and base.world_size):
        return True
    return run.global_batch * base.world_size == base.global_batch * run.world_size


def same_data(run: TrainingRun, base: TrainingRun) -> bool:
    """Whether one epoch of both is one pass over equally many samples, as far as the runs tell.

    By their sizes; without sizes by the name of a real data set, or for strong scaling, which keeps the data by definition.
    """
    if run.dataset_size is not None and base.dataset_size is not None:
        return run.dataset_size == base.dataset_size
    if run.dataset != base.dataset:
        return False
    real = run.dataset is not None and not run.dataset.lower().startswith(MADE_UP)
    return real or scaling_of(run, base) != "weak"


MIN_NOISES = 2.0
"""Standard deviations of one epoch's accuracy, of both runs together, from which on a lower accuracy is a loss."""

MIN_LOST = 0.005
"""A loss of accuracy below this is none, however little the epochs vary."""

OTHER_WORK = 0.05
"""A loss from which on the run did other work than its baseline; the limit where too few epochs show what chance does."""


@record
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
    """Compare the accuracy of ``run`` with that of ``base`` at equal epochs; None where their accuracies cannot be compared.

    That is: none known, random labels, epochs of two writers, or figures of the end of runs that may differ in length.
    """
    if _says_nothing(run) or any(side.settings.get("duplicate_epochs") for side in (run, base)):
        return None
    epochs = min(len(run.epochs), len(base.epochs)) or None
    if epochs is None and (run.workload is not None or run.epochs or base.epochs):
        return None
    best, base_best = best_accuracy(run, epochs=epochs), best_accuracy(base, epochs=epochs)
    if best is None or base_best is None or not all(0 <= accuracy <= 1 for accuracy in (best, base_best)):
        return None
    noise, base_noise = accuracy_noise(run), accuracy_noise(base)
    both = None if noise is None or base_noise is None else math.hypot(noise, base_noise)
    return Quality(epochs=epochs, best=best, base_best=base_best, noise=both)


def _says_nothing(run: TrainingRun) -> bool:
    """Whether a run's labels are random: their accuracy is one in so many classes, whatever is learned."""
    made_up = run.dataset is not None and run.dataset.lower().startswith(MADE_UP)
    return made_up and setting(run.settings, "labels") != "teacher"
