"""``stepscope watch`` of run folders of `bench`: how far the cells are, where ranks are, whether anybody works on them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from tests.commands import Ran
from tests.fake_runs import single, spec

from stepscope.records.cell import CellStatus, RunRecord
from stepscope.records.samples import Heartbeat
from stepscope.store.layout import RunLayout
from stepscope.store.writer import hold_lock, write_record

pytestmark = pytest.mark.usefixtures("fresh_consoles")


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    """Four cells, of which one is ok and one ran out of memory."""
    layout = RunLayout(tmp_path)
    cells = [single("a"), spec("b"), spec("c", strategy="ddp"), spec("d", precision="bf16")]
    for cell in cells:
        write_record(layout.cell(cell.cell_id).spec, cell)
    record = RunRecord(kind="bench", name="mine", matrix={}, cells=tuple(c.cell_id for c in cells), argv=())
    write_record(layout.run, record)
    _status(layout, "b", "oom", 2, reason="rank 1 asked for 2 GiB")
    _status(layout, "a", "ok", 1)
    return layout


def _status(layout: RunLayout, cell: str, status: Any, at_s: int, **more: Any) -> None:
    path = layout.cell(cell).status
    write_record(path, CellStatus(cell_id=cell, status=status, wall_ns=3 * 10**9, **more))
    os.utime(path, (at_s, at_s))


def _beat(layout: RunLayout, cell: str, rank: int, step: int, *, age_s: float = 0.0) -> None:
    now = time.time_ns() - int(age_s * 1e9)
    beat = Heartbeat(rank=rank, host="n1", pid=1, cell_id=cell, phase="measure", step=step, time_ns=now, moved_ns=now)
    write_record(layout.cell(cell).heartbeat(rank), beat)


def look(ran: Ran, layout: RunLayout) -> dict[str, Any]:
    said = ran("watch", layout.root, "--json")
    assert (said.code, said.err) == (0, "")
    found: dict[str, Any] = json.loads(said.out)
    return found


def test_cells_in_the_order_of_their_end_and_the_ranks_of_the_one_at_work(layout: RunLayout, ran: Ran) -> None:
    _beat(layout, "b", 0, 9)  # of a cell that has ended
    _beat(layout, "d", 0, 3, age_s=50.0)  # of an earlier attempt
    for rank in range(2):
        _beat(layout, "c", rank, 40 + rank)
    with hold_lock(layout.lock):
        found = look(ran, layout)
        said = ran("watch", layout.root)
    assert (found["state"], found["cell"], len(found["cells"])) == ("running", "c", 4)
    assert [(each["cell_id"], each["status"]) for each in found["statuses"]] == [("a", "ok"), ("b", "oom")]
    assert [(each["rank"], each["step"]) for each in found["ranks"]] == [(0, 40), (1, 41)]
    assert said.code == 0
    assert "rank 1 asked for 2 GiB" in said.out
    assert len(set(found["labels"].values())) == 4


def test_nobody_works_on_it(layout: RunLayout, ran: Ran) -> None:
    _beat(layout, "c", 0, 40)
    found = look(ran, layout)
    assert (found["state"], found["cell"], found["ranks"]) == ("stopped", None, [])
    for cell in "cd":
        _status(layout, cell, "ok", 3)
    assert look(ran, layout)["state"] == "ended"


def test_before_any_cell(tmp_path: Path, ran: Ran) -> None:
    layout = RunLayout(tmp_path)
    write_record(layout.run, RunRecord(kind="comm", name="x", matrix={}, cells=("a", "b"), argv=()))
    with hold_lock(layout.lock):
        found = look(ran, layout)
    assert (found["state"], found["statuses"], found["labels"]) == ("running", [], {"a": "a", "b": "b"})


def test_a_page_is_of_jobs_alone(layout: RunLayout, ran: Ran, tmp_path: Path) -> None:
    said = ran("watch", layout.root, "--html", tmp_path / "x.html")
    assert said.code == 2
    assert "--html" in said.err
