from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepscope.core.errors import MissingError, Unavailable
from stepscope.matrix.session import derive_results
from stepscope.records.cell import RunRecord
from stepscope.results.run_figures import BENCH, bench_document, write_results
from stepscope.results.runs import NOT_IN_MATRIX, Planned, build_runs, plan_of, read_runs
from stepscope.store.layout import RunLayout
from stepscope.store.writer import write_record


def test_results_are_read_back_as_they_were_written(fakes: Any, tmp_path: Path) -> None:
    rows = (
        fakes.timed_row("a", 1e7, samples_seen_per_rank=(3, 4)),
        fakes.row("b", strategy="naive", status="oom", error="full"),
    )
    write_results(RunLayout(tmp_path), rows)
    file = RunLayout(tmp_path).results_jsonl
    assert read_runs(file) == tuple(replace(row, source=str(file)) for row in rows)
    lines = [json.loads(line) for line in RunLayout(tmp_path).results_jsonl.read_text().splitlines()]
    assert [line["schema"] for line in lines] == ["stepscope.training_run/2"] * 2
    assert lines[1]["step_ns"] is None


def test_the_bench_document_has_the_pinned_shape_and_row_names_in_their_order(fakes: Any) -> None:
    run = RunRecord(kind="bench", name="quick", matrix={"version": 1}, cells=("a",), argv=("stepscope", "bench"))
    document = bench_document(run, [fakes.row("a")])
    assert list(document) == ["schema", "tool_version", "created", "run", "cells", "experiment"]
    assert document["schema"] == "stepscope.bench/1"
    assert document["run"]["name"] == "quick"
    assert document["cells"][0]["cell_id"] == "a"
    json.dumps(document, allow_nan=False)
    pinned = (
        "cell_id", "status", "error", "workload", "model", "dataset", "dataset_size", "strategy", "strategy_options",
        "precision", "accumulation", "world_size", "micro_batch", "global_batch", "device", "backend",
        "num_parameters", "steps", "epochs", "step_ns_median", "step_ns_low", "step_ns_high", "samples_per_s",
        "comm_bytes_per_step", "exposed_comm_ns_median", "comm_source", "train_loss", "test_accuracy",
        "samples_seen_per_rank", "peak_memory_bytes", "speedup", "efficiency", "scaling", "baseline_cell_id",
    )  # fmt: skip
    assert tuple(BENCH)[: len(pinned)] == pinned


def test_results_that_cannot_be_written_say_where_and_what_to_do(fakes: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(MissingError) as caught:
        write_results(RunLayout(tmp_path / "file" / "run"), [fakes.row("a")])
    assert caught.value.what == f"{tmp_path / 'file'} is not a folder"
    assert caught.value.fix


def test_the_plan_of_ddp_carries_every_gradient_once_and_one_rank_sends_nothing(fakes: Any) -> None:
    plan = plan_of(fakes.spec("a"))
    assert isinstance(plan, Planned)
    assert plan.comm_bytes_per_step == 4 * plan.num_parameters  # float32
    halved = plan_of(fakes.spec("a", strategy_options={"hook": "bf16"}))
    assert isinstance(halved, Planned)
    assert halved.comm_bytes_per_step == 2 * plan.num_parameters
    alone = plan_of(fakes.single("a"))
    assert isinstance(alone, Planned)
    assert alone.comm_bytes_per_step == 0


@pytest.mark.parametrize("changes", [{"strategy": "fsdp9"}, {"model": {"size": "huge"}}, {"workload": "mlb"}])
def test_a_cell_that_this_installation_cannot_plan_has_a_reason(fakes: Any, changes: dict[str, Any]) -> None:
    plan = plan_of(fakes.spec("a", **changes))
    assert isinstance(plan, Unavailable)
    assert "a" in plan.reason


def test_a_missing_plan_leaves_the_bytes_unknown_and_says_why(fakes: Any, tmp_path: Path) -> None:
    cell = fakes.spec("a")
    fakes.write_cell(RunLayout(tmp_path), cell, ranks=[fakes.series([1000] * 8)] * 2)
    (row,) = build_runs(RunLayout(tmp_path), [cell], plans={"a": Unavailable("not installed here")})
    assert row.comm_bytes_per_step is None
    assert "not installed here" in row.notes


def test_a_cell_of_an_earlier_matrix_comes_last_and_says_so(fakes: Any, tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    for cell in (fakes.single("old"), fakes.spec("new")):
        fakes.write_cell(layout, cell, ranks=[fakes.series([10**7] * 8)] * cell.world_size)
    run = RunRecord(kind="bench", name="n", matrix={}, cells=("new", "never"), argv=(), earlier_cells=("old",))
    write_record(layout.run, run)
    write_record(layout.cell("never").spec, fakes.spec("never", seed=2))
    new, never, old = derive_results(layout)
    assert (new.status, never.status, old.status) == ("ok", "interrupted", "ok")
    assert NOT_IN_MATRIX in old.notes
    assert NOT_IN_MATRIX not in new.notes
    assert new.baseline_id == "old"
