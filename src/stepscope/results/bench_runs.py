"""Cells of `bench` as training runs like all others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from stepscope.config.varied import settings_of
from stepscope.core.words import counted
from stepscope.records.cell_result import CellResult
from stepscope.records.run import ResultRow
from stepscope.records.samples import PHASES, EpochResult, RankSummary
from stepscope.records.training import Epoch, Measured, PhaseTimes, TrainingRun
from stepscope.results.evidence import CellEvidence
from stepscope.results.labels import CellLabel, cell_labels
from stepscope.stats.measured import common_steps


def cell_evidence(rows: Sequence[ResultRow], results: Sequence[CellResult], *, source: str) -> tuple[CellEvidence, ...]:
    """One for every row, in order; ``results`` are the same cells' samples."""
    labels = cell_labels(rows)
    return tuple(
        CellEvidence(row=row, run=_run(row, label, result, source), result=result)
        for row, label, result in zip(rows, labels, results, strict=True)
    )


def _run(row: ResultRow, label: CellLabel, result: CellResult, source: str) -> TrainingRun:
    step = _measured(row.step_ns_median, row.step_ns_low, row.step_ns_high, row.steps)
    ranks = counted(row.world_size, "rank")
    return TrainingRun(
        run_id=row.cell_id,
        label=f"{label.mode} on {ranks}",
        group=_group(row, label),
        source=source,
        status=row.status,
        error=row.error,
        world_size=row.world_size,
        model=label.model,
        dataset=row.dataset,
        dataset_size=row.dataset_size,
        strategy=label.mode,
        precision=row.precision,
        accumulation=row.accumulation,
        micro_batch=row.micro_batch,
        global_batch=row.global_batch,
        scaling="strong" if result.spec.batch_rule == "global_batch" else "weak",
        baseline_id=row.baseline_cell_id,
        device=row.device,
        backend=row.backend,
        hardware=_hardware(result.summaries),
        num_parameters=row.num_parameters,
        step_ns=step,
        epoch_ns=_measured(row.epoch_ns, row.epoch_ns_low, row.epoch_ns_high, None),
        epoch_estimated=row.epoch_estimated,
        samples_per_s=_rate(row, step),
        exposed_comm_ns=_measured(
            row.exposed_comm_ns_median, row.exposed_comm_ns_low, row.exposed_comm_ns_high, row.steps
        ),
        comm_bytes_per_step=row.comm_bytes_per_step,
        phases=_phases(result),
        epochs=_epochs(result.summaries),
        train_loss=row.train_loss,
        test_accuracy=row.test_accuracy,
        samples_seen_per_rank=row.samples_seen_per_rank,
        peak_memory_bytes=row.peak_memory_bytes,
        steps_per_epoch=row.steps_per_epoch,
        settings=_settings(row, result),
        notes=row.notes,
    )


def _group(row: ResultRow, label: CellLabel) -> str:
    parts = [f"{label.model} on {row.dataset}", row.precision]
    if row.accumulation > 1:
        parts.append(f"accumulation {row.accumulation}")
    return ", ".join(parts)


def _hardware(summaries: Sequence[RankSummary]) -> str | None:
    names = sorted({summary.device_name for summary in summaries})
    return ", ".join(names) or None


def _measured(value: float | None, low: float | None, high: float | None, n: int | None) -> Measured | None:
    return None if value is None else Measured(value=value, low=low, high=high, n=n)


def _rate(row: ResultRow, step: Measured | None) -> Measured | None:
    """samples/s with the step's interval turned over: a long step is a low rate."""
    if row.samples_per_s is None:
        return None
    if step is None or step.low is None or step.high is None:
        return Measured(value=row.samples_per_s)
    return Measured(
        value=row.samples_per_s,
        low=row.samples_per_s * step.value / step.high,
        high=row.samples_per_s * step.value / step.low,
        n=step.n,
    )


def _phases(result: CellResult) -> PhaseTimes | None:
    steps = common_steps(result.samples, result.spec.world_size).full
    if not steps:
        return None
    fields = [f"{phase}_ns" for phase in PHASES]
    of_step = attrgetter(*fields)
    # [steps, ranks, phases]
    times = np.array([[of_step(sample) for sample in ranks] for ranks in steps.values()], dtype=np.float64)
    medians = np.median(times.max(axis=1), axis=0)
    return PhaseTimes(**dict(zip(fields, map(float, medians), strict=True)))


def _epochs(summaries: Sequence[RankSummary]) -> tuple[Epoch, ...]:
    """Epochs of the last round that all ranks have; times are the slowest rank's."""
    per_rank = [_last_round(summary.epochs) for summary in summaries]
    if not per_rank or not all(per_rank):
        return ()
    common = sorted(set.intersection(*({e.epoch for e in ranks} for ranks in per_rank)))
    of = [{e.epoch: e for e in ranks} for ranks in per_rank]
    return tuple(
        Epoch(
            number=number,
            duration_ns=float(max(ranks[number].epoch_ns for ranks in of)),
            train_loss=of[0][number].train_loss,
            validation_accuracy=of[0][number].test_accuracy,
            samples_seen=sum(ranks[number].samples_seen for ranks in of),
        )
        for number in common
    )


def _last_round(epochs: Sequence[EpochResult]) -> list[EpochResult]:
    last = max((e.round for e in epochs), default=0)
    return [e for e in epochs if e.round == last]


def _settings(row: ResultRow, result: CellResult) -> Mapping[str, Any]:
    return {
        **settings_of(result.spec),
        **{f"strategy_options.{k}": v for k, v in row.strategy_options.items()},
    }
