"""From the samples of all ranks of one cell to its figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from stepscope.core.dataclass import record
from stepscope.core.units import format_percent
from stepscope.records.nouns import Measured
from stepscope.stats.compare import rounds_median_interval
from stepscope.stats.order import measured_median, median
from stepscope.stats.step_table import StepKey, cell_table
from stepscope.stats.warmup import drift_fraction, one_level

if TYPE_CHECKING:
    from stepscope.records.samples import CellResult, EpochResult, RankSamples, RankSummary, StepSample

BOOTSTRAP_SEED = 20_240_601  # fixed: the same samples give the same interval every time


def estimate(rounds: Mapping[int, Sequence[float]]) -> Measured | None:
    """Median over the steps of all rounds, with an interval that lets rounds differ; None without steps.

    One round: order statistics widened by autocorrelation. More: two-stage bootstrap with rounds as blocks.
    """
    pooled = [value for values in rounds.values() for value in values]
    if not pooled:
        return None
    if len(rounds) == 1:
        return measured_median(pooled)
    ends = rounds_median_interval(list(rounds.values()), rng=np.random.default_rng(BOOTSTRAP_SEED))
    return Measured.between(median(pooled), ends, n=len(pooled))


def step_of(cell: CellResult) -> Measured | None:
    """The median step of the slowest rank, ns; None without a whole timed step of every rank."""
    table = cell_table(cell)
    return None if table is None else estimate(table.by_round(table.step_ns))


def mean_loss(steps: Mapping[StepKey, Sequence[StepSample]]) -> float | None:
    """Mean loss of a sample over ``steps``: all ranks' loss sums / all samples; None if any is not finite."""
    sums = [sample.loss_sum for ranks in steps.values() for sample in ranks]
    finite = [value for value in sums if value is not None]
    samples = sum(ranks[0].global_samples for ranks in steps.values())
    if not samples or len(finite) < len(sums):
        return None
    return sum(finite) / samples


@record
class EpochFigures:
    """Figures of an epochs cell's last epoch, and what there is to say of its epochs."""

    train_loss: float | None
    test_accuracy: float | None
    samples_seen_per_rank: tuple[int, ...] | None
    notes: tuple[str, ...]


def epoch_figures(cell: CellResult, warmup_epochs: frozenset[int]) -> EpochFigures:
    """Loss, accuracy and samples of the last epoch that all ranks finished."""
    per_rank = [_last_round(summary.epochs) for summary in _by_rank(cell.summaries)]
    if len(per_rank) < cell.spec.world_size or not all(per_rank):
        return EpochFigures(
            train_loss=None,
            test_accuracy=None,
            samples_seen_per_rank=None,
            notes=("no epoch was finished by all ranks",),
        )
    notes: list[str] = []
    epochs = sorted(set.intersection(*({e.epoch for e in ranks} for ranks in per_rank)))
    steady = [epoch for epoch in epochs if epoch not in warmup_epochs] or epochs
    if not warmup_epochs.isdisjoint(steady):
        notes.append("the epoch time includes warm-up steps: every epoch has some")
    elif len(steady) < len(epochs):
        notes.append(f"epoch time: {len(epochs) - len(steady)} of {len(epochs)} epochs left out as warm-up")
    last = [ranks[-1] for ranks in per_rank]
    if last[0].non_finite:
        notes.append("the training loss of the last epoch is not finite (NaN or infinity)")
    notes += _sampling_notes(cell, last)
    return EpochFigures(
        train_loss=last[0].train_loss,
        test_accuracy=last[0].test_accuracy,
        samples_seen_per_rank=tuple(e.samples_seen for e in last),
        notes=tuple(notes),
    )


def warmup_epochs(samples: Iterable[RankSamples]) -> frozenset[int]:
    """Epochs in which at least one step was warm-up."""
    return frozenset(step.epoch for rank in samples for step in rank.steps if step.warmup)


def peak_memory(summaries: Sequence[RankSummary]) -> int | None:
    """Largest peak over the ranks in bytes; None when any rank could not tell."""
    peaks = [summary.peak_memory_bytes for summary in summaries]
    recorded = [peak for peak in peaks if peak is not None]
    return max(recorded) if recorded and len(recorded) == len(peaks) else None


def stability_notes(rounds: Mapping[int, Sequence[float]]) -> tuple[str, ...]:
    """A note for every round whose steps drifted."""
    notes = []
    for number, values in sorted(rounds.items()):
        if one_level(values):
            continue
        where = f" in round {number}" if len(rounds) > 1 else ""
        change = format_percent(drift_fraction(values), signed=True)
        notes.append(
            f"step times drifted{where}: the second half is {change} against the first"
            " (warm-up too short, or a drifting or busy machine)"
        )
    return tuple(notes)


def replica_notes(summaries: Sequence[RankSummary]) -> tuple[str, ...]:
    """What the ranks' final checks say: replicas that differ, collectives that are not the planned ones."""
    notes = []
    checksums = {(s.model_part, s.parameter_checksum) for s in summaries if s.parameter_checksum}
    if len(checksums) > len({part for part, _ in checksums}):
        notes.append(f"replicas differ: {len(checksums)} different parameter sets over {len(summaries)} ranks")
    for summary in summaries:
        check = summary.plan_check
        if check is not None and check.unavailable is None and not check.matches:
            notes.append("the recorded collectives differ from the strategy's plan (see plan_check in rank-*.json)")
            break
    return tuple(notes)


def _by_rank(summaries: Sequence[RankSummary]) -> list[RankSummary]:
    return sorted(summaries, key=lambda summary: summary.rank)


def _last_round(epochs: Sequence[EpochResult]) -> list[EpochResult]:
    if not epochs:
        return []
    last = max(e.round for e in epochs)
    return sorted((e for e in epochs if e.round == last), key=lambda e: e.epoch)


def _sampling_notes(cell: CellResult, last: Sequence[EpochResult]) -> list[str]:
    """The commonest scaling bug: every rank trains on all the data."""
    expected, seen = cell.summaries[0].train_samples, sum(e.samples_seen for e in last)
    if seen == expected:
        return []
    return [
        f"the ranks together trained on {seen:,} samples in an epoch of {expected:,}: the data is not split correctly"
    ]
