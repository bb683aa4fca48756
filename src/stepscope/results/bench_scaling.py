"""The baseline of every cell, and what is said where its speed-up cannot be or is not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from stepscope.records.cell import CellSpec
from stepscope.records.training import ScalingRow, TrainingRun
from stepscope.results.bench_baseline import find_baseline
from stepscope.results.scaling import scaling_rows


def with_baselines(runs: Sequence[TrainingRun], cells: Sequence[CellSpec]) -> tuple[TrainingRun, ...]:
    """``runs`` (one a cell, same order) with ``baseline_id``; a run that others are measured against is its own.

    A baseline without a result, and a speed-up that so many ranks cannot give, are notes.
    """
    found = {cell.cell_id: find_baseline(cell, cells) for cell in cells}
    baselines = {cell_id for cell_id in found.values() if cell_id is not None}
    with_ids = [
        replace(run, baseline_id=found[run.run_id] or (run.run_id if run.run_id in baselines else None)) for run in runs
    ]
    by_id = {run.run_id: run for run in with_ids}
    scaled = {row.run_id: row for row in scaling_rows(with_ids)}
    return tuple(_noted(run, by_id.get(run.baseline_id or ""), scaled) for run in with_ids)


def _noted(run: TrainingRun, base: TrainingRun | None, scaled: Mapping[str, ScalingRow]) -> TrainingRun:
    if base is None or run.samples_per_s is None or base.run_id == run.run_id:
        return run
    if base.samples_per_s is None:
        note = f"no speed-up: the baseline {base.run_id} gave no result ({base.status})"
        return replace(run, notes=(*run.notes, note))
    row = scaled.get(run.run_id)
    if row is None or row.rating is not None:
        return run
    note = (
        f"{row.speedup:.2f}x is more than {run.world_size} ranks can give: the baseline was slowed down by other load "
        "or measured too briefly; measure both again"
    )
    return replace(run, notes=(*run.notes, note))
