"""Cells that measure collectives, for the runner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stepscope.core.units import format_size
from stepscope.launch.verdict import Verdict
from stepscope.matrix.cell_kind import CellKind, RunRequest
from stepscope.records.cell import Cell
from stepscope.records.comm import CommSummary
from stepscope.store.layout import RunLayout
from stepscope.store.reader import read_comm_samples, read_record


def _group_fields(request: RunRequest, cells: tuple[Cell, ...]) -> Mapping[str, Any]:
    measure = request.comm_measure
    return {
        "cells": (),
        "comm_cells": cells,
        "comm_measure": measure,
        "measure": replace(request.measure, timeout_ns=measure.timeout_ns),
    }


def _conclude(layout: RunLayout, cell: Cell) -> Verdict:
    """ok, unless the backend cannot do it, or a result was wrong: then nobody should trust its time."""
    files = layout.cell(cell.cell_id)
    for rank in range(cell.world_size):
        summary = read_record(files.summary(rank), CommSummary)
        if summary.unsupported is not None:
            return Verdict(status="unsupported", reason=summary.unsupported)
    for rank in range(cell.world_size):
        ranks = read_comm_samples(files.samples(rank))
        for sample in () if ranks is None else ranks.samples:
            if sample.correct is False:
                return Verdict(
                    status="error",
                    phase="check",
                    reason=f"wrong result on rank {rank} at {format_size(sample.size_bytes or 0)}: {sample.wrong}",
                    rank=rank,
                    host=None if ranks is None else ranks.header.host,
                )
    return Verdict(status="ok")


COMM = CellKind(name="comm", group_fields=_group_fields, conclude=_conclude)
