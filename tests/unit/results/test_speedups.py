from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepscope.records.cell import CellStatus
from stepscope.results.runs import build_runs, planned_run
from stepscope.results.scaling import with_baselines
from stepscope.store.layout import RunLayout

MS = 1_000_000


def _rows(fakes: Any, tmp_path: Path, *timed: tuple[Any, int | None]) -> list[Any]:
    layout = RunLayout(tmp_path)
    for cell, step_ns in timed:
        if step_ns is None:
            fakes.write_cell(layout, cell, status=CellStatus(cell_id=cell.cell_id, status="oom", reason="full"))
        else:
            fakes.write_cell(layout, cell, ranks=[fakes.series([step_ns] * 8)] * cell.world_size)
    runs: list[Any] = fakes.flat(build_runs(layout, [cell for cell, _ in timed], plans={}))
    return runs


def test_weak_scaling_counts_the_larger_global_batch(fakes: Any, tmp_path: Path) -> None:
    one = fakes.single("one", batch_rule="micro_batch", micro_batch=64, global_batch=64)
    two = fakes.spec("two", batch_rule="micro_batch", micro_batch=64, global_batch=128)
    _, ddp = _rows(fakes, tmp_path, (one, 40 * MS), (two, 42 * MS))
    assert ddp.speedup == pytest.approx(2 * 40 / 42)
    assert (ddp.scaling, ddp.rating) == ("weak", "excellent")


def test_a_failed_baseline_is_named_and_a_failed_cell_keeps_its_baseline(fakes: Any, tmp_path: Path) -> None:
    base, ddp = _rows(fakes, tmp_path, (fakes.single("one"), None), (fakes.spec("two"), 25 * MS))
    assert base.speedup is None
    assert (ddp.speedup, ddp.rating, ddp.baseline_cell_id) == (None, None, "one")
    assert "no speed-up: the baseline one has no result (oom)" in ddp.notes
    _, ddp = _rows(fakes, tmp_path / "b", (fakes.single("one"), 40 * MS), (fakes.spec("two"), None))
    assert (ddp.speedup, ddp.rating, ddp.baseline_cell_id) == (None, None, "one")


def test_ranks_that_divide_the_model_leave_the_global_batch_as_it_is(fakes: Any, tmp_path: Path) -> None:
    rule = {"batch_rule": "micro_batch", "micro_batch": 64}
    one = fakes.single("one", global_batch=64, **rule)
    stages = fakes.spec("two", global_batch=64, strategy="pipeline", mesh={"pp": 2}, **rule)
    both = fakes.spec("four", global_batch=128, strategy="pipeline", mesh={"pp": 2, "dp": 2}, world_size=4, **rule)
    _, two, four = _rows(fakes, tmp_path, (one, 40 * MS), (stages, 25 * MS), (both, 25 * MS))
    assert (two.scaling, two.speedup) == ("strong", pytest.approx(1.6))
    assert (four.scaling, four.baseline_cell_id, four.speedup) == (None, "one", pytest.approx(3.2))


@pytest.mark.parametrize(("mesh", "batch", "kind"), [({"pp": 2}, 64, "strong"), ({}, 128, "weak")])
def test_a_baseline_is_of_the_kind_of_what_is_measured_against_it(mesh: Any, batch: int, kind: str, fakes: Any) -> None:
    rule = {"batch_rule": "micro_batch", "micro_batch": 64}
    cells = (fakes.single("one", global_batch=64, **rule), fakes.spec("two", global_batch=batch, mesh=mesh, **rule))
    runs = with_baselines([replace(planned_run(cell), group="g", status="ok") for cell in cells])
    assert [(run.scaling, run.baseline_id) for run in runs] == [(kind, "one"), (kind, "one")]
