"""Starting and resuming a run folder: what stands, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.cells import cell_spec

from stepscope.core.errors import UsageError
from stepscope.matrix.run_folder import MISSING_DATA, prepare, read_statuses, untraced
from stepscope.records.cell import CellSpec, CellStatus, RunRecord
from stepscope.records.environment import EnvironmentRecord
from stepscope.records.nouns import Status
from stepscope.store.layout import RunLayout
from stepscope.store.reader import read_cells, read_record
from stepscope.store.writer import write_record

HERE = EnvironmentRecord(
    host="a", os="Linux", kernel="6", python="3.11", cpu_model="X", logical_cores=2, physical_cores=2, usable_cores=2,
    memory_bytes=1, memory_available_bytes=1, packages={}, variables={}, scheduler=None,
)  # fmt: skip


def start(
    root: Path,
    *specs: CellSpec,
    environment: EnvironmentRecord = HERE,
    force: bool = False,
    name: str = "n",
    argv: tuple[str, ...] = (),
) -> RunLayout:
    layout = RunLayout(root)
    run = RunRecord(kind="bench", name=name, matrix={}, cells=tuple(s.cell_id for s in specs), argv=argv)
    prepare(layout, run=run, specs=specs, environment=environment, force=force)
    return layout


A, B, C = cell_spec(cell_id="a"), cell_spec(cell_id="b", strategy="ddp"), cell_spec(cell_id="c", seed=2)


def measured(layout: RunLayout, *cells: CellSpec, status: Status = "ok") -> None:
    for cell in cells:
        write_record(layout.cell(cell.cell_id).status, CellStatus(cell_id=cell.cell_id, status=status))


def test_a_longer_version_of_the_matrix_adds_its_cells_in_its_own_order(tmp_path: Path) -> None:
    measured(start(tmp_path, A), A)
    layout = start(tmp_path, B, A)
    assert [cell.cell_id for cell in read_cells(layout)] == ["b", "a"]


def test_a_cell_that_left_the_matrix_stays_if_it_has_a_result(tmp_path: Path) -> None:
    layout = start(tmp_path, A, B, C)
    measured(layout, A, B)
    measured(layout, C, status="interrupted")
    start(tmp_path, A)
    run = read_record(layout.run, RunRecord)
    assert (run.cells, run.earlier_cells) == (("a",), ("b",))
    assert [cell.cell_id for cell in read_cells(layout)] == ["a", "b"]
    start(tmp_path, A, B)
    run = read_record(layout.run, RunRecord)
    assert (run.cells, run.earlier_cells) == (("a", "b"), ())


def test_a_matrix_of_another_name_is_refused_unless_forced(tmp_path: Path) -> None:
    measured(start(tmp_path, A), A)
    with pytest.raises(UsageError, match="belongs to the matrix 'n', not to 'other'") as caught:
        start(tmp_path, A, name="other")
    assert "--force" in str(caught.value)
    layout = start(tmp_path, B, name="other", force=True)
    assert [cell.cell_id for cell in read_cells(layout)] == ["b", "a"]


def test_a_matrix_of_the_same_name_without_a_measured_cell_in_common_is_refused(tmp_path: Path) -> None:
    layout = start(tmp_path, A)
    start(tmp_path, B)  # nothing was measured yet: there is nothing to mix
    measured(layout, B)
    with pytest.raises(UsageError, match="another version of the matrix 'n'"):
        start(tmp_path, A)


def test_the_commands_that_made_a_run_are_all_remembered_once(tmp_path: Path) -> None:
    layout = start(tmp_path, A, argv=("stepscope", "bench"))
    start(tmp_path, A, argv=("stepscope", "bench", "--profile"))
    start(tmp_path, A, argv=("stepscope", "bench"))
    run = read_record(layout.run, RunRecord)
    assert run.commands == (("stepscope", "bench"), ("stepscope", "bench", "--profile"))
    assert run.argv == ("stepscope", "bench")


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


def test_cells_that_are_ok_and_have_no_trace_are_found(tmp_path: Path) -> None:
    layout = start(tmp_path, A, B, C)
    measured(layout, A, B)
    measured(layout, C, status="oom")
    traces = layout.cell("b").traces
    traces.mkdir()
    (traces / "rank-00000.json.gz").write_bytes(b"")
    statuses = read_statuses(layout, ["a", "b", "c", "d"])
    assert set(statuses) == {"a", "b", "c"}
    assert untraced(layout, statuses) == {"a"}


def test_cells_of_sections_not_asked_for_now_stay_and_share_the_folder(tmp_path: Path) -> None:
    layout = start(tmp_path, A, B)
    measured(layout, A)
    measured(layout, B, status="unsupported")
    run = RunRecord(
        kind="bench", name="n", matrix={}, cells=(C.cell_id,), argv=(), sections={"x": ("a", "b"), "y": ("c",)}
    )
    prepare(layout, run=run, specs=(C,), environment=HERE, force=False, others=(A.cell_id, B.cell_id))
    kept = read_record(layout.run, RunRecord)
    assert (kept.cells, kept.earlier_cells) == (("c", "a", "b"), ())
    with pytest.raises(UsageError):  # without them it is another matrix
        prepare(layout, run=replace(run, cells=("z",)), specs=(), environment=HERE, force=False)
