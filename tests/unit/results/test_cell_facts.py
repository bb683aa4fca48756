from __future__ import annotations

import pytest
from tests.bench_evidence import bench, made

from stepscope.diagnose.commands import again
from stepscope.records.cell import RunRecord
from stepscope.results.cell_facts import exposed, timed_cells


def record(*argv: str, **matrix: object) -> RunRecord:
    return RunRecord(kind="bench", name="demo", matrix=matrix, cells=("c",), argv=argv)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("stepscope", "bench", "m.yaml", "-o", "RUN", "--json"), "stepscope bench m.yaml"),
        (("stepscope", "bench", "--output=RUN", "--preset", "quick"), "stepscope bench --preset quick"),
        (("stepscope", "demo"), "stepscope bench --preset demo"),
        ((), "stepscope bench MATRIX.yaml"),
    ],
)
def test_the_command_of_a_cell_without_its_folder(argv: tuple[str, ...], expected: str) -> None:
    evidence = bench(made("c"), records=(record(*argv),))
    assert again(evidence, evidence.cells[0]) == expected


def test_a_swept_setting_is_changed_on_its_axis() -> None:
    evidence = bench(made("c"), records=(record("stepscope", "bench", "m.yaml", axes={"num_workers": [0, 1]}),))
    cell = evidence.cells[0]
    assert again(evidence, cell, ("num_workers", 2)) == "stepscope bench m.yaml --set 'axes.num_workers=[2]'"
    assert again(evidence, cell, ("pin_memory", True)) == "stepscope bench m.yaml --set base.pin_memory=true"
    assert again(evidence, cell, ("lr", [0.5, 1.0])) == "stepscope bench m.yaml --set 'axes.lr=[0.5,1]'"


def test_exposed_communication_is_transfer_and_waiting_of_cells_with_a_result() -> None:
    def own(rank: int, step: int, phases: dict[str, float]) -> None:  # noqa: ARG001
        phases["forward"] += 20 * rank

    found = exposed(made("c", comm_ms=4, own=own, jitter=0).result)
    assert found.net_ns == pytest.approx(4e6)
    assert found.waiting_ns == pytest.approx(20e6)
    evidence = bench(made("c"), made("s", strategy="single", world_size=1))
    assert [each.cell.cell_id for each in timed_cells(evidence, least_ranks=2)] == ["c"]
    assert len(timed_cells(evidence)) == 2
