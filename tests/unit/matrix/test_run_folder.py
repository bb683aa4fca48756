"""Starting and resuming a run folder: what stands, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.cells import cell_spec

from stepscope.core.errors import UsageError
from stepscope.matrix.run_folder import MISSING_DATA, prepare, read_cells, read_statuses
from stepscope.records.environment import EnvironmentRecord
from stepscope.records.run import CellStatus, RunRecord
from stepscope.store.layout import RunLayout
from stepscope.store.writer import write_record

HERE = EnvironmentRecord(
    host="a", os="Linux", kernel="6", python="3.11", cpu_model="X", logical_cores=2, physical_cores=2, usable_cores=2,
    memory_bytes=1, memory_available_bytes=1, packages={}, variables={}, scheduler=None,
)  # fmt: skip


def run_of(*specs, kind: str = "bench") -> RunRecord:
    return RunRecord(kind=kind, name="n", matrix={}, cells=tuple(s.cell_id for s in specs), argv=())


def start(root: Path, *specs, environment: EnvironmentRecord = HERE, force: bool = False) -> RunLayout:
    layout = RunLayout(root)
    prepare(layout, run=run_of(*specs), specs=specs, environment=environment, force=force)
    return layout


A, B = cell_spec(cell_id="a"), cell_spec(cell_id="b", strategy="ddp")


def test_a_second_matrix_adds_its_cells_and_keeps_those_of_the_first(tmp_path: Path) -> None:
    start(tmp_path, A)
    layout = start(tmp_path, B, A)
    assert [cell.cell_id for cell in read_cells(layout)] == ["a", "b"]


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("x")
    with pytest.raises(UsageError, match="not a run folder"):
        start(tmp_path, A)


@pytest.mark.parametrize("change", [{"cpu_model": "Y"}, {"usable_cores": 64}])
def test_another_machine_is_refused_unless_forced(change: dict[str, object], tmp_path: Path) -> None:
    start(tmp_path, A)
    other = replace(HERE, **change)
    with pytest.raises(UsageError, match="another machine") as caught:
        start(tmp_path, A, environment=other)
    assert "--force" in str(caught.value)
    start(tmp_path, A, environment=other, force=True)


def test_the_same_machine_with_less_free_memory_is_the_same_machine(tmp_path: Path) -> None:
    start(tmp_path, A)
    start(tmp_path, A, environment=replace(HERE, memory_available_bytes=0, host="renamed"))


def test_a_cell_that_lacked_its_data_gives_way_to_the_real_one(tmp_path: Path) -> None:
    start(tmp_path, cell_spec(cell_id="ghost", data_digest=MISSING_DATA))
    layout = start(tmp_path, A)
    assert [cell.cell_id for cell in read_cells(layout)] == ["a"]


def test_with_traces_a_cell_measured_without_them_does_not_count(tmp_path: Path) -> None:
    layout = start(tmp_path, A, B)
    for cell in (A, B):
        write_record(layout.cell(cell.cell_id).status, CellStatus(cell_id=cell.cell_id, status="ok"))
    traces = layout.cell("b").traces
    traces.mkdir()
    (traces / "rank-00000.json.gz").write_bytes(b"")
    assert set(read_statuses(layout, ["a", "b", "c"])) == {"a", "b"}
    assert set(read_statuses(layout, ["a", "b", "c"], with_traces=True)) == {"b"}
