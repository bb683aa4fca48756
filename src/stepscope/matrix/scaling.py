"""Speed-up, efficiency and their rating against a cell's baseline (METRICS: scaling)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stepscope.matrix.baseline import find_baseline, scaling_of
from stepscope.records.cell import CellSpec
from stepscope.records.run import ResultRow

EXCELLENT, GOOD, FAIR = 0.9, 0.8, 0.5
"""Lower ends, exclusive, of the ratings of efficiency."""


def rate(speedup: float, *, world_size: int) -> str:
    """``excellent`` (efficiency > 0.9), ``good`` (> 0.8), ``fair`` (> 0.5), ``poor`` or ``negative`` (speed-
    up < 1).
    """
    efficiency = speedup / world_size
    if speedup < 1.0:
        return "negative"
    if efficiency > EXCELLENT:
        return "excellent"
    if efficiency > GOOD:
        return "good"
    return "fair" if efficiency > FAIR else "poor"


def add_scaling(rows: Sequence[ResultRow], cells: Sequence[CellSpec]) -> tuple[ResultRow, ...]:
    """``rows`` (one a cell, same order) with speed-up, efficiency, scaling, baseline and rating filled in.

    speed-up = samples/s over the baseline's samples/s; efficiency = speed-up / world size. A cell that others
    are measured against is its own baseline with speed-up 1. Where the baseline is missing or failed, all of
    it is None.
    """
    by_id = {row.cell_id: row for row in rows}
    found = {cell.cell_id: _baseline_id(cell, cells) for cell in cells}
    baselines = {cell_id for cell_id in found.values() if cell_id is not None}
    scaled = []
    for row, cell in zip(rows, cells, strict=True):
        baseline = found[cell.cell_id] or (cell.cell_id if cell.cell_id in baselines else None)
        scaled.append(row if baseline is None else _scaled(row, cell, by_id[baseline]))
    return tuple(scaled)


def _baseline_id(cell: CellSpec, cells: Sequence[CellSpec]) -> str | None:
    found: object = find_baseline(cell, cells)
    return getattr(found, "cell_id", None) if not isinstance(found, str) else found


def _scaled(row: ResultRow, cell: CellSpec, base: ResultRow) -> ResultRow:
    is_baseline = base.cell_id == row.cell_id
    row = replace(row, baseline_cell_id=base.cell_id, scaling=None if is_baseline else scaling_of(cell))
    if row.samples_per_s is None:
        return row
    if base.samples_per_s is None:
        note = f"no speed-up: the baseline {base.cell_id} gave no result ({base.status})"
        return replace(row, notes=(*row.notes, note))
    speedup = row.samples_per_s / base.samples_per_s
    return replace(
        row,
        speedup=speedup,
        efficiency=speedup / cell.world_size,
        rating=None if is_baseline else rate(speedup, world_size=cell.world_size),
    )
