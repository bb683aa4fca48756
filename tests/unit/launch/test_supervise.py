"""How long a group is waited for, with a clock and processes of the test's own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.cells import cell_spec

from stepscope.launch.supervise import ERROR_GRACE_NS, CellOutcome, RunningGroup
from stepscope.launch.torchrun import Launched
from stepscope.records.cell import GroupSpec, MeasureSettings
from stepscope.records.samples import RankError
from stepscope.store.layout import RunLayout
from stepscope.store.writer import make_dir, write_record

CELLS = (cell_spec(cell_id="first"), cell_spec(cell_id="second"))


class Clock:
    """Monotonic nanoseconds that only the test moves."""

    def __init__(self) -> None:
        self.now_ns = 1

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def group(tmp_path: Path, clock: Clock) -> Iterator[RunningGroup]:
    """A group of two cells whose processes never end by themselves."""
    layout = RunLayout(tmp_path)
    spec = GroupSpec(
        group_id="g", run_dir=str(tmp_path), world_size=2, device="cpu", backend="gloo", threads_per_rank=1,
        measure=MeasureSettings(timeout_ns=10**15), cells=CELLS, cache_dir="",
    )  # fmt: skip

    def start() -> Launched:
        log = (make_dir(layout.group("g").root) / "launcher.log").open("wb")
        return Launched(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]), log)

    with RunningGroup(spec, layout, start=start, now=clock) as running:
        yield running


def leave(run: Path, rank: int, kind: str, cell_id: str | None = "first") -> None:
    error = RankError(rank=rank, host="h", pid=1, cell_id=cell_id, phase="data", step=0, kind=kind, exception=kind,
                      traceback="")  # fmt: skip
    layout = RunLayout(run)
    folder = layout.group("g") if cell_id is None else layout.cell(cell_id)
    write_record(folder.error(rank), error)


def advance(group: RunningGroup, clock: Clock, ns: int) -> tuple[list[CellOutcome], bool]:
    clock.now_ns += ns
    return group.poll()


@pytest.mark.parametrize("cell_id", ["first", None])
def test_a_ranks_own_error_ends_the_group_although_its_peer_still_waits(
    group: RunningGroup, clock: Clock, tmp_path: Path, cell_id: str | None
) -> None:
    leave(tmp_path, 0, "error", cell_id)
    assert group.poll() == ([], False), "the others get a moment to say theirs"
    leave(tmp_path, 1, "oom", cell_id)
    (outcome,), over = advance(group, clock, ERROR_GRACE_NS + 1)
    assert over
    assert outcome.cell.cell_id == "first"
    assert (outcome.status.status, outcome.status.failing_rank) == ("oom", 1), "any out-of-memory wins"
    assert [cell.cell_id for cell in group.waiting] == ["second"]


def test_a_victim_alone_ends_nothing(group: RunningGroup, clock: Clock, tmp_path: Path) -> None:
    leave(tmp_path, 1, "victim")
    group.poll()
    assert advance(group, clock, 10 * ERROR_GRACE_NS) == ([], False), "who failed may still be about to say so"
