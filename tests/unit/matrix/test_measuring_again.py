"""Profiling a finished run: interrupted, it loses no result whose turn had not come."""

from __future__ import annotations

from pathlib import Path

from tests.matrices import plan
from tests.unit.matrix.test_run_folder import HERE

from stepscope.matrix.kinds import BENCH
from stepscope.matrix.resume import plan_resume
from stepscope.matrix.run_folder import read_statuses
from stepscope.matrix.runner import _Run
from stepscope.matrix.work import RunRequest, RunStarted
from stepscope.records.cell import CellStatus, MeasureSettings
from stepscope.store.layout import RunLayout
from stepscope.store.writer import write_bytes, write_record


def test_interrupted_before_its_turn_a_cell_keeps_its_result(tmp_path: Path) -> None:
    cells = plan("axes: {strategy: [naive, ddp], world_size: [2]}")
    layout = RunLayout(tmp_path)
    waiting, started = (cell.spec for cell in cells)
    earlier = {cell_id: CellStatus(cell_id=cell_id, status="ok") for cell_id in (waiting.cell_id, started.cell_id)}
    for cell_id, status in earlier.items():
        write_record(layout.cell(cell_id).status, status)
    for rank in (0, 1):
        write_bytes(layout.cell(waiting.cell_id).summary(rank), b"{}")
    write_bytes(layout.cell(started.cell_id).summary(0), b"{}")  # of this attempt: rank 1 never got there
    request = RunRequest(
        layout=layout, name="n", matrix={}, cells=cells, measure=MeasureSettings(profile=True), usable_cores=2,
        argv=(), cache_dir=tmp_path, env={}, environment=HERE, kind=BENCH,
    )  # fmt: skip
    events: list[object] = []
    run = _Run(request, earlier, events.append, untraced=frozenset(earlier), rerun=frozenset())
    run.begin(plan_resume(cells, {}))
    assert isinstance(events[0], RunStarted)
    assert (events[0].to_run, events[0].remeasured) == (2, 2)
    run.interrupt()
    found = read_statuses(layout, [waiting.cell_id, started.cell_id])
    assert (found[waiting.cell_id].status, found[started.cell_id].status) == ("ok", "interrupted")
