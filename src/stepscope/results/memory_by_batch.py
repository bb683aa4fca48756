"""Peak memory of a rank over the batch, where runs differ in nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from stepscope.core.dataclass import dataclass
from stepscope.core.words import grouped
from stepscope.records.training import TrainingRun
from stepscope.results.evidence import CellEvidence
from stepscope.results.held import held_by

FAILED = ("oom", "host_oom", "skipped")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMemory:
    """One batch. per_sample_bytes: growth of the peak since the next smaller batch that ran, for each further sample of a
    rank's micro-batch; None: it is the smallest, or has no peak. held: bytes by kind (parameters, gradients, optimizer,
    activations), tensor by tensor, of the rank that holds most; empty: not counted."""

    run: TrainingRun
    micro_batch: int
    peak_bytes: int | None
    per_sample_bytes: float | None
    held: Mapping[str, int]


def memory_by_batch(
    runs: Sequence[TrainingRun], cells: Sequence[CellEvidence] = ()
) -> tuple[tuple[BatchMemory, ...], ...]:
    """A group for each set of runs that differ in the batch alone, small batches first; out of memory is a result, too.

    Groups of one batch tell nothing, and are left out.
    """
    shown = [run for run in runs if run.micro_batch is not None and (_peak(run) is not None or run.status in FAILED)]
    counted = {cell.run.run_id: found.sizes for cell in cells if (found := held_by(cell)) is not None}
    groups = (_group(group, counted) for group in grouped(shown, _but_for_batch).values())
    return tuple(group for group in groups if len({each.micro_batch for each in group}) > 1)


def _group(runs: Sequence[TrainingRun], counted: Mapping[str, Mapping[str, int]]) -> tuple[BatchMemory, ...]:
    ordered = sorted(runs, key=lambda run: run.micro_batch or 0)
    ran = [run for run in ordered if _peak(run) is not None]
    growth = {
        larger.run_id: ((_peak(larger) or 0) - (_peak(smaller) or 0)) / (_batch(larger) - _batch(smaller))
        for smaller, larger in pairwise(ran)
        if _batch(larger) > _batch(smaller)
    }
    return tuple(
        BatchMemory(
            run=run, micro_batch=_batch(run), peak_bytes=_peak(run), per_sample_bytes=growth.get(run.run_id),
            held=counted.get(run.run_id, {}),
        )
        for run in ordered
    )  # fmt: skip


def _batch(run: TrainingRun) -> int:
    return run.micro_batch or 0


def _peak(run: TrainingRun) -> int | None:
    return run.peak_memory_bytes if run.status == "ok" else None


_OF_BATCH = ("micro_batch", "global_batch", "batch_rule")


def _but_for_batch(run: TrainingRun) -> tuple[object, ...]:
    settings, varied = (
        {key: value for key, value in found.items() if key not in _OF_BATCH} for found in (run.settings, run.varied)
    )
    return (
        run.source, run.model, run.dataset, run.strategy_key, run.precision, run.accumulation, run.world_size, run.device,
        run.backend, run.hardware, repr(sorted(settings.items())), repr(sorted(varied.items())),
    )  # fmt: skip
