"""Do a run and its baseline train on the same data, and each rank on its part of it?"""

from __future__ import annotations

from statistics import median

from stepscope.core.dataclass import dataclass
from stepscope.records.nouns import Scaling
from stepscope.records.training import TrainingRun
from stepscope.results.figures import learning_rate
from stepscope.results.learning import epochs_to_loss, losses

MADE_UP = ("synthetic", "random", "dummy", "fake")
"""Beginnings of the names of data sets that may grow with the ranks: their name does not fix their size."""

SEEN_TOO_OFTEN = 1.5
"""Samples of an epoch over all ranks / data set size, from which on samples are trained on more than once."""

LOSS_LOWER = 0.10
"""How much lower the first epoch's loss must be on n ranks, relative to the baseline's, to count as lower."""

TIME_KEPT = 0.9
"""Epoch time on n ranks / the baseline's, from which on it has not fallen."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
    mine, theirs = losses(run), losses(base)
    times = [e.duration_ns for e in run.epochs if e.duration_ns]
    base_times = [e.duration_ns for e in base.epochs if e.duration_ns]
    if 0 not in mine or 0 not in theirs or not times or not base_times or theirs[0] <= 0 or mine[0] < 0:
        return None
    if (
        (run.world_size or 0) <= (base.world_size or 0)
        or not same_data(run, base)
        or learning_rate(run) != learning_rate(base)
    ):
        return None
    if run.global_batch and base.global_batch and run.global_batch < base.global_batch:
        return None
    second = mine.get(1)
    needed = None if second is None else epochs_to_loss(base, second)
    return FirstEpochs(
        loss=mine[0],
        base_loss=theirs[0],
        time_ratio=median(times) / median(base_times),
        later=None if needed is None else (2, needed),
    )


def duplicated(run: TrainingRun, base: TrainingRun) -> bool:
    """Whether the ranks of ``run`` train on the same data; counted samples decide before curves do."""
    seen = times_seen(run)
    if seen is not None:
        return seen >= SEEN_TOO_OFTEN and (run.world_size or 0) > 1
    found = curves(run, base)
    return found is not None and found.duplicated


def scaling_of(run: TrainingRun, base: TrainingRun) -> Scaling | None:
    """As the run says; else ``strong`` for the same global batch, ``weak`` for the same batch a rank and micro-step.

    None where the global batch has not grown with the ranks, either: some of them divide the model."""
    if run.scaling is not None:
        return run.scaling
    if run.global_batch is not None and run.global_batch == base.global_batch:
        return "strong"
    if run.micro_batch is not None and run.micro_batch == base.micro_batch:
        return "weak" if run.accumulation == base.accumulation and _grown(run, base) else None
    return None


def _grown(run: TrainingRun, base: TrainingRun) -> bool:
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
