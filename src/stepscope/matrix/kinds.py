"""The two kinds of cells for the runner: training, and sweeps of collectives.

Data of training cells is read, checked and prepared before any rank starts: once, on no cell's time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepscope.core.errors import StepscopeError
from stepscope.core.units import format_size
from stepscope.launch.supervise import summaries
from stepscope.matrix.expand import PlannedCell
from stepscope.matrix.resume import backstop
from stepscope.matrix.work import CellKind, PlannedWork, RunRequest
from stepscope.predict.specs import Specs, specs_of
from stepscope.records.cell import Cell, CellSpec, CellStatus
from stepscope.records.comm import CommSummary
from stepscope.store.layout import RunLayout
from stepscope.store.reader import read_comm_samples, read_record


def _unusable_cells(
    request: RunRequest, cells: Iterable[Cell], announce: Callable[[str], None]
) -> Mapping[str, StepscopeError]:
    """Return the cells whose data cannot be used: all with the same reason, and no rank starts for them."""
    training = (cell for cell in cells if isinstance(cell, CellSpec))
    return prepare_data(training, data_dir=request.data_dir, cache_dir=request.cache_dir, announce=announce)


def prepare_data(
    cells: Iterable[CellSpec], *, data_dir: Path | None, cache_dir: Path, announce: Callable[[str], None]
) -> dict[str, StepscopeError]:
    """Fill the cache with the arrays that ``cells`` train on; cell id -> why its data cannot be used.

    Cells that share a data set, its options and the model's input share the work and the reason. announce: called
    with a data set's name before its files are read.
    """
    seen: dict[str, StepscopeError | None] = {}
    unusable = {}
    for cell in cells:
        specs = specs_of(cell)
        key = f"{cell.dataset} {specs.dataset_options.model_dump_json()} {specs.needs!r}"
        if key not in seen:
            seen[key] = _prepare_data(specs, data_dir, cache_dir, announce)
        if (error := seen[key]) is not None:
            unusable[cell.cell_id] = error
    return unusable


def _prepare_data(
    specs: Specs, data_dir: Path | None, cache_dir: Path, announce: Callable[[str], None]
) -> StepscopeError | None:
    """Download and cache a data set; return why it cannot be used, else None."""
    dataset, options = specs.dataset, specs.dataset_options
    try:
        files = dataset.locate(options, data_dir)
        if files:  # without files there is nothing to check, and every rank draws its own arrays
            announce(dataset.key)
            dataset.prepare(options, specs.needs, files, cache_dir)
    except StepscopeError as error:
        return error
    return None


def _bench_fields(request: RunRequest, cells: tuple[Cell, ...]) -> Mapping[str, Any]:
    return {"cells": cells, "measure": request.measure}


def _concluded_status(layout: RunLayout, cell: Cell) -> CellStatus:
    """Return ok, unless the replicas ended with different parameters: then every number of the cell is void."""
    ranks = summaries(layout, cell)
    first = {r.model_part: r for r in reversed(ranks)}
    odd = [r for r in ranks if r.parameter_checksum != first[r.model_part].parameter_checksum]
    if not odd:
        return CellStatus(cell_id=cell.cell_id, status="ok")
    other = first[odd[0].model_part]
    return CellStatus(
        cell_id=cell.cell_id,
        status="error",
        phase="verify",
        reason=f"replicas diverged: rank {odd[0].rank} on {odd[0].host} ended with parameters "
        f"{odd[0].parameter_checksum}, rank {other.rank} with {other.parameter_checksum}",
        failing_rank=odd[0].rank,
        failing_host=odd[0].host,
    )


def _larger_cells(failed: PlannedWork, waiting: Iterable[PlannedWork]) -> Mapping[str, str]:
    assert isinstance(failed, PlannedCell)
    return backstop(failed, (cell for cell in waiting if isinstance(cell, PlannedCell)))


BENCH = CellKind(
    name="bench", unusable=_unusable_cells, group_fields=_bench_fields, conclude=_concluded_status, larger=_larger_cells
)


def _comm_fields(request: RunRequest, cells: tuple[Cell, ...]) -> Mapping[str, Any]:
    """Return the fields of a request that are those of `comm`."""
    measure = request.comm_measure
    return {
        "cells": (),
        "comm_cells": cells,
        "comm_measure": measure,
        "measure": replace(request.measure, timeout_ns=measure.timeout_ns),
    }


def _conclude_comm(layout: RunLayout, cell: Cell) -> CellStatus:
    """Return ok, unless the backend cannot do it, or a result was wrong: then nobody should trust its time."""
    files = layout.cell(cell.cell_id)
    for rank in range(cell.world_size):
        summary = read_record(files.summary(rank), CommSummary)
        if summary.unsupported is not None:
            return CellStatus(cell_id=cell.cell_id, status="unsupported", reason=summary.unsupported)
    for rank in range(cell.world_size):
        ranks = read_comm_samples(files.samples(rank))
        for sample in () if ranks is None else ranks.samples:
            if sample.correct is False:
                return CellStatus(
                    cell_id=cell.cell_id,
                    status="error",
                    phase="check",
                    reason=f"wrong result on rank {rank} at {format_size(sample.size_bytes or 0)}: {sample.wrong}",
                    failing_rank=rank,
                    failing_host=None if ranks is None else ranks.header.host,
                )
    return CellStatus(cell_id=cell.cell_id, status="ok")


COMM = CellKind(name="comm", group_fields=_comm_fields, conclude=_conclude_comm)
