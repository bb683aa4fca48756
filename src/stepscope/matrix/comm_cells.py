"""Cells that measure collectives, for the runner."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from stepscope.core.errors import StepscopeError
from stepscope.core.units import format_size
from stepscope.matrix.cell_kind import CellKind, Conclusion, PlannedWork, RunRequest
from stepscope.records.cell import Cell
from stepscope.records.comm import CommSummary
from stepscope.store.layout import RunLayout
from stepscope.store.reader import read_comm_samples, read_record


def _nothing_unusable(
    request: RunRequest, cells: Iterable[Cell], announce: Callable[[str], None]
) -> Mapping[str, StepscopeError]:
    del request, cells, announce
    return {}


def _group_fields(request: RunRequest, cells: tuple[Cell, ...]) -> Mapping[str, Any]:
    measure = request.comm_measure
    return {
        "cells": (),
        "comm_cells": cells,
        "comm_measure": measure,
        "measure": replace(request.measure, timeout_ns=measure.timeout_ns),
    }


def _conclude(layout: RunLayout, cell: Cell) -> Conclusion:
    """ok, unless the backend cannot do it, or a result was wrong: then nobody should trust its time."""
    files = layout.cell(cell.cell_id)
    for rank in range(cell.world_size):
        summary = read_record(files.summary(rank), CommSummary)
        if summary.unsupported is not None:
            return Conclusion(status="unsupported", reason=summary.unsupported)
    for rank in range(cell.world_size):
        ranks = read_comm_samples(files.samples(rank))
        for sample in () if ranks is None else ranks.samples:
            if sample.correct is False:
                return Conclusion(
                    status="error",
                    phase="check",
                    reason=f"wrong result on rank {rank} at {format_size(sample.size_bytes or 0)}: {sample.wrong}",
                    rank=rank,
                    host=None if ranks is None else ranks.header.host,
                )
    return Conclusion(status="ok")


def _nothing_larger(failed: PlannedWork, waiting: Iterable[PlannedWork]) -> Mapping[str, str]:
    del failed, waiting
    return {}


COMM = CellKind(
    name="comm",
    unusable=_nothing_unusable,
    group_fields=_group_fields,
    conclude=_conclude,
    larger=_nothing_larger,
)
