"""Training cells, for the runner."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from stepscope.core.errors import StepscopeError
from stepscope.launch.supervise import summaries
from stepscope.matrix.backstop import backstop
from stepscope.matrix.cell_kind import CellKind, Conclusion, PlannedWork, RunRequest
from stepscope.matrix.data import prepare_data
from stepscope.matrix.expand import PlannedCell
from stepscope.records.cell import Cell, CellSpec
from stepscope.store.layout import RunLayout


def _unusable(
    request: RunRequest, cells: Iterable[Cell], announce: Callable[[str], None]
) -> Mapping[str, StepscopeError]:
    """Cells whose data cannot be used: all with the same reason, and no rank starts for them."""
    training = (cell for cell in cells if isinstance(cell, CellSpec))
    return prepare_data(training, data_dir=request.data_dir, cache_dir=request.cache_dir, announce=announce)


def _group_fields(request: RunRequest, cells: tuple[Cell, ...]) -> Mapping[str, Any]:
    return {"cells": cells, "measure": request.measure}


def _conclude(layout: RunLayout, cell: Cell) -> Conclusion:
    """ok, unless the replicas ended with different parameters: then every number of the cell is void."""
    ranks = summaries(layout, cell)
    first = {r.model_part: r for r in reversed(ranks)}
    odd = [r for r in ranks if r.parameter_checksum != first[r.model_part].parameter_checksum]
    if not odd:
        return Conclusion(status="ok")
    other = first[odd[0].model_part]
    return Conclusion(
        status="error",
        phase="verify",
        reason=f"replicas diverged: rank {odd[0].rank} on {odd[0].host} ended with parameters "
        f"{odd[0].parameter_checksum}, rank {other.rank} with {other.parameter_checksum}",
        rank=odd[0].rank,
        host=odd[0].host,
    )


def _larger(failed: PlannedWork, waiting: Iterable[PlannedWork]) -> Mapping[str, str]:
    assert isinstance(failed, PlannedCell)
    return backstop(failed, (cell for cell in waiting if isinstance(cell, PlannedCell)))


BENCH = CellKind(name="bench", unusable=_unusable, group_fields=_group_fields, conclude=_conclude, larger=_larger)
