"""The run folder of a matrix: made, resumed, refused; which earlier results stand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from stepscope.core.errors import UsageError
from stepscope.records.cell import CellSpec
from stepscope.records.environment import EnvironmentRecord
from stepscope.records.run import CellStatus, RunRecord
from stepscope.store.layout import RunLayout
from stepscope.store.reader import read_if_there, read_record
from stepscope.store.writer import write_record

MISSING_DATA = "data-missing"
"""Stands for a digest while the files cannot be read: such a cell never runs under this identity."""


def prepare(
    layout: RunLayout,
    *,
    run: RunRecord,
    specs: tuple[CellSpec, ...],
    environment: EnvironmentRecord,
    force: bool,
) -> None:
    """Write run.json, environment.json and the cells' specs; cells of an earlier run in the folder stay in run.json.

    Raises UsageError for a folder that is something else, or that another machine measured (unless ``force``).
    """
    earlier = read_if_there(layout.run, RunRecord)
    if earlier is not None:
        if earlier.kind != run.kind:
            raise UsageError(
                f"{layout.root} holds a {earlier.kind} run", fix="choose another run folder with -o DIR"
            )
        if not force:
            _refuse_other_machine(layout, environment)
        kept = (cell_id for cell_id in earlier.cells if not _lacked_data(layout, cell_id))
        run = replace(run, cells=tuple(dict.fromkeys((*kept, *run.cells))))
    elif any(path.name != layout.lock.name for path in layout.root.iterdir()):
        raise UsageError(
            f"{layout.root} is not empty and is not a run folder",
            why="nothing of yours is overwritten",
            fix="choose another folder with -o DIR",
        )
    write_record(layout.run, run)
    write_record(layout.environment, environment)
    for spec in specs:
        write_record(layout.cell(spec.cell_id).spec, spec)


def read_statuses(
    layout: RunLayout, cell_ids: Iterable[str], *, with_traces: bool = False
) -> dict[str, CellStatus]:
    """Statuses that an earlier run left, by cell id. with_traces: a cell measured without traces does not count."""
    found = {}
    for cell_id in cell_ids:
        files = layout.cell(cell_id)
        status = read_if_there(files.status, CellStatus)
        if status is None or (with_traces and status.status == "ok" and not any(files.traces.glob("*"))):
            continue
        found[cell_id] = status
    return found


def read_cells(layout: RunLayout) -> tuple[CellSpec, ...]:
    """Specs of all cells of a run folder, in matrix order."""
    run = read_record(layout.run, RunRecord)
    return tuple(read_record(layout.cell(cell_id).spec, CellSpec) for cell_id in run.cells)


def _lacked_data(layout: RunLayout, cell_id: str) -> bool:
    """Whether an earlier run could not even identify this cell: it never gets a result under that id."""
    spec = read_if_there(layout.cell(cell_id).spec, CellSpec)
    return spec is None or spec.data_digest == MISSING_DATA


def _refuse_other_machine(layout: RunLayout, now: EnvironmentRecord) -> None:
    """One run folder, one kind of machine: results of two would be compared as if they were of one."""
    before = read_if_there(layout.environment, EnvironmentRecord)
    if before is None:
        return
    changed = [
        f"{what}: {old} then, {new} now"
        for what, old, new in zip(("CPU", "GPUs", "torch"), _machine(before), _machine(now), strict=True)
        if old != new
    ]
    if changed:
        raise UsageError(
            f"{layout.root} was measured on another machine",
            why="; ".join(changed),
            fix="choose another run folder with -o DIR, or add --force to mix them",
        )


def _machine(environment: EnvironmentRecord) -> tuple[str, str, str]:
    torch = environment.torch
    gpus = "unknown" if torch is None else ", ".join(torch.device_names) or "none"
    version = "unknown" if torch is None else torch.version
    return f"{environment.cpu_model}, {environment.usable_cores} cores", gpus, version
