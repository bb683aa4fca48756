"""Speed-up, efficiency and their rating against a cell's baseline (METRICS: scaling)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stepscope.records.cell import CellSpec
from stepscope.records.run import ResultRow
from stepscope.results.bench_baseline import find_baseline, scaling_of
from stepscope.stats.scaling import rate


def add_scaling(rows: Sequence[ResultRow], cells: Sequence[CellSpec]) -> tuple[ResultRow, ...]:
    """``rows`` (one a cell, same order) with speed-up, efficiency, scaling, baseline and rating filled in.

    speed-up = samples/s over the baseline's samples/s; efficiency = speed-up / world size. A cell that others
    are measured against is its own baseline with speed-up 1. Where the baseline is missing or failed, all of
    it is None.
    """
    by_id = {row.cell_id: row for row in rows}
    found = {cell.cell_id: find_baseline(cell, cells) for cell in cells}
    baselines = {cell_id for cell_id in found.values() if cell_id is not None}
    scaled = []
    for row, cell in zip(rows, cells, strict=True):
        baseline = found[cell.cell_id] or (cell.cell_id if cell.cell_id in baselines else None)
        scaled.append(row if baseline is None else _scaled(row, cell, by_id[baseline]))
    return tuple(scaled)


def _scaled(row: ResultRow, cell: CellSpec, base: ResultRow) -> ResultRow:
    is_baseline = base.cell_id == row.cell_id
    row = replace(row, baseline_cell_id=base.cell_id, scaling=None if is_baseline else scaling_of(cell))
    if row.samples_per_s is None:
        return row
    if base.samples_per_s is None:
        note = f"no speed-up: the baseline {base.cell_id} gave no result ({base.status})"
        return replace(row, notes=(*row.notes, note))
    speedup = row.samples_per_s / base.samples_per_s
    rating = None if is_baseline else rate(speedup, world_size=cell.world_size)
    if not is_baseline and rating is None:
        note = (
            f"{speedup:.2f}x is more than {cell.world_size} ranks can give: the baseline was slowed down by other load "
            "or measured too briefly; measure both again"
        )
        row = replace(row, notes=(*row.notes, note))
    return replace(row, speedup=speedup, efficiency=speedup / cell.world_size, rating=rating)
