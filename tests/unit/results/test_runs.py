from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests import fake_runs

from stepscope.records.cell import CellStatus, RunRecord
from stepscope.results.runs import Planned, baselines_of, build_runs
from stepscope.store.layout import RunLayout
from stepscope.store.writer import write_record

PLAN = Planned(num_parameters=1000, comm_bytes_per_step=4000)
MS = 1_000_000


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    return RunLayout(tmp_path / "run")


def _one(layout: RunLayout, cell: Any, *others: Any) -> Any:
    cells = [cell, *others]
    return fake_runs.flat(build_runs(layout, cells, plans={c.cell_id: PLAN for c in cells}))[0]


def test_a_step_is_the_maximum_over_ranks_and_warmup_and_tail_are_no_steps(fakes: Any, layout: RunLayout) -> None:
    cell = fakes.spec("c1")
    # maxima: 30, 20, 25 -> 25; the ranks' own medians are 10 and 20, their mean would be 15
    fakes.write_cell(
        layout,
        cell,
        ranks=[fakes.series([10 * MS, 20 * MS, 5 * MS]), fakes.series([30 * MS, 10 * MS, 25 * MS])],
    )
    row = _one(layout, cell)
    assert row.step_ns_median == 25 * MS
    assert row.samples_per_s == pytest.approx(64 / 0.025)
    assert (row.step_ns_low, row.step_ns_high) == (None, None)
    assert row.steps == 3
    assert row.status == "ok"
    assert row.error is None
    cell = fakes.single("c2")
    steps = [
        fakes.step(0, 900 * MS, warmup=True),
        *(fakes.step(n, 10 * MS) for n in range(1, 9)),
        fakes.step(9, 1 * MS, full=False, global_samples=8),
    ]
    fakes.write_cell(layout, cell, ranks=[steps])
    row = _one(layout, cell)
    assert row.step_ns_median == row.step_ns_low == row.step_ns_high == 10 * MS
    assert row.steps == 8


def test_only_steps_that_every_rank_has_are_counted_and_without_a_ranks_samples_none(
    fakes: Any, layout: RunLayout
) -> None:
    cell = fakes.spec("c1")
    fakes.write_cell(layout, cell, ranks=[fakes.series([10 * MS] * 8), fakes.series([20 * MS] * 6)])
    row = _one(layout, cell)
    assert row.steps == 6
    assert row.step_ns_median == 20 * MS
    cell = fakes.spec("c2", world_size=3)
    fakes.write_cell(layout, cell, ranks=[fakes.series([10 * MS] * 8), fakes.series([20 * MS] * 8)])
    row = _one(layout, cell)
    assert row.step_ns_median is None
    assert row.samples_per_s is None
    assert any("rank 2 left no samples" in note for note in row.notes)


def test_rounds_that_differ_make_a_wider_interval_than_one_long_round(fakes: Any, tmp_path: Path) -> None:
    cell = fakes.single("c1")
    times = [
        [10 * MS + n for n in range(20)],
        [11 * MS + n for n in range(20)],
        [12 * MS + n for n in range(20)],
    ]
    rounds = [s for r, values in enumerate(times) for s in fakes.series(values, round=r)]
    layout = RunLayout(tmp_path)
    fakes.write_cell(layout, cell, ranks=[rounds])
    row = _one(layout, cell)
    assert row.step_ns_median == pytest.approx(11 * MS, rel=1e-4)
    assert row.step_ns_low < 10.1 * MS
    assert row.step_ns_high > 11.9 * MS
    assert row == _one(layout, cell)


def test_the_loss_weighs_samples_and_one_that_is_not_finite_makes_it_unknown(fakes: Any, layout: RunLayout) -> None:
    cell = fakes.spec("c1")
    # full step: 60 + 4 over 64 samples; tail: 30 over 8. Mean over samples: 94 / 72
    first = [fakes.step(0, MS, loss_sum=60.0), fakes.step(1, MS, loss_sum=30.0, full=False, global_samples=8)]
    second = [fakes.step(0, MS, loss_sum=4.0), fakes.step(1, MS, loss_sum=0.0, full=False, global_samples=8)]
    fakes.write_cell(layout, cell, ranks=[first, second])
    assert _one(layout, cell).train_loss == pytest.approx(94 / 72)
    cell = fakes.single("c2")
    fakes.write_cell(layout, cell, ranks=[[fakes.step(0, MS), fakes.step(1, MS, loss_sum=None)]])
    assert _one(layout, cell).train_loss is None


def test_memory_is_the_largest_peak_and_an_estimated_epoch_comes_from_the_median_step(
    fakes: Any, layout: RunLayout
) -> None:
    cell = fakes.single("c1")
    fakes.write_cell(layout, cell, ranks=[fakes.series([10 * MS] * 8)], train_samples=250)
    row = _one(layout, cell)
    assert row.steps_per_epoch == 4  # 250 / 64, the tail step counted as one
    assert row.epoch_ns == row.epoch_ns_low == row.epoch_ns_high == 40 * MS
    assert row.epoch_estimated is True
    assert row.dataset_size == 250
    cell = fakes.spec("c2")
    ranks = [fakes.series([MS] * 3)] * 2
    fakes.write_cell(layout, cell, ranks=ranks)
    fakes.write_record(layout.cell("c2").summary(1), fakes.rank_summary(cell, 1, peak_memory_bytes=300))
    assert _one(layout, cell).peak_memory_bytes == 100 * 2**20
    fakes.write_record(layout.cell("c2").summary(1), fakes.rank_summary(cell, 1, peak_memory_bytes=None))
    assert _one(layout, cell).peak_memory_bytes is None


def test_replicas_that_differ_and_steps_that_drift_are_notes(fakes: Any, layout: RunLayout) -> None:
    cell = fakes.spec("c1")
    fakes.write_cell(layout, cell, ranks=[fakes.series([MS] * 3)] * 2)
    assert _one(layout, cell).notes == ()
    fakes.write_record(layout.cell("c1").summary(1), fakes.rank_summary(cell, 1, parameter_checksum="bb"))
    assert "replicas differ: 2 different parameter sets over 2 ranks" in _one(layout, cell).notes
    cell = fakes.single("c2")
    fakes.write_cell(layout, cell, ranks=[fakes.series([10 * MS + n for n in range(20)] + [12 * MS] * 20)])
    assert any("+20%" in note for note in _one(layout, cell).notes)


# --- epochs cells


def _epochs_cell(fakes: Any, layout: RunLayout, times: list[int], *, warmup: bool = True, **changes: Any) -> Any:
    cell = fakes.spec("c1", steps=None, epochs=len(times))
    steps = [fakes.step(n, 10 * MS, epoch=n // 4, warmup=warmup and n < 3) for n in range(4 * len(times))]
    results = [fakes.epoch(n, t, **changes) for n, t in enumerate(times)]
    slower = [fakes.epoch(n, t + MS, **changes) for n, t in enumerate(times)]
    fakes.write_cell(layout, cell, ranks=[steps, steps], epochs=[results, slower])
    return _one(layout, cell)


def test_an_epoch_is_the_slowest_ranks_and_the_warm_one_is_left_out(fakes: Any, layout: RunLayout) -> None:
    row = _epochs_cell(fakes, layout, [900 * MS, 50 * MS, 40 * MS, 60 * MS])
    assert row.epoch_ns == 51 * MS
    assert (row.epoch_ns_low, row.epoch_ns_high) == (
        41 * MS,
        61 * MS,
    )  # range: too few epochs for an interval
    assert row.epoch_estimated is False
    assert row.epochs == 4
    assert row.steps is None
    assert "epoch time: 1 of 4 epochs left out as warm-up" in row.notes


def test_epochs_with_and_without_warmup(fakes: Any, layout: RunLayout) -> None:
    row = _epochs_cell(fakes, layout, [900 * MS])
    assert row.epoch_ns == 901 * MS
    assert (row.epoch_ns_low, row.epoch_ns_high) == (None, None)
    assert any("includes warm-up steps" in note for note in row.notes)
    row = _epochs_cell(fakes, RunLayout(layout.root / "b"), [70 * MS, 50 * MS, 60 * MS], warmup=False)
    assert row.epoch_ns == 61 * MS
    assert row.notes == ()


def test_loss_accuracy_and_samples_are_those_of_the_last_epoch(fakes: Any, layout: RunLayout) -> None:
    cell = fakes.spec("c1", steps=None, epochs=2)
    results = [fakes.epoch(0, MS), fakes.epoch(1, MS, train_loss=0.25, test_accuracy=0.75, samples_seen=128)]
    fakes.write_cell(layout, cell, ranks=[fakes.series([MS] * 4)] * 2, epochs=[results, results])
    row = _one(layout, cell)
    assert (row.train_loss, row.test_accuracy, row.samples_seen_per_rank) == (0.25, 0.75, (128, 128))


def test_samples_accuracy_and_loss_that_cannot_be_are_unknown_and_said(fakes: Any, layout: RunLayout) -> None:
    assert _epochs_cell(fakes, layout, [MS, MS], test_accuracy=None).test_accuracy is None
    row = _epochs_cell(fakes, RunLayout(layout.root / "b"), [MS, MS], samples_seen=256)
    assert row.samples_seen_per_rank == (256, 256)
    assert any("trained on 512 samples in an epoch of 256" in note for note in row.notes)
    row = _epochs_cell(fakes, RunLayout(layout.root / "c"), [MS, MS], train_loss=None, non_finite=True)
    assert row.train_loss is None
    assert any("not finite" in note for note in row.notes)


# --- cells without a result


def _measured(row: Any) -> set[object]:
    names = (
        "steps", "step_ns_median", "step_ns_low", "samples_per_s", "comm_bytes_per_step", "exposed_comm_ns_median",
        "train_loss", "test_accuracy", "peak_memory_bytes", "speedup", "efficiency", "rating", "epoch_ns",
    )  # fmt: skip
    return {getattr(row, name) for name in names}


def test_a_failed_cell_has_a_row_with_its_reason_and_no_figures(fakes: Any, layout: RunLayout) -> None:
    cell = fakes.spec("c1")
    status = CellStatus(
        cell_id="c1", status="oom", failing_rank=1, failing_host="node-b",
        exception="Traceback ...\n  in step\ntorch.OutOfMemoryError: CUDA out of memory",
    )  # fmt: skip
    fakes.write_cell(layout, cell, ranks=[fakes.series([MS] * 7)] * 2, summaries=False, status=status)
    row = _one(layout, cell)
    assert row.status == "oom"
    assert row.error == "rank 1 on node-b: torch.OutOfMemoryError: CUDA out of memory"
    assert _measured(row) == {None}
    assert row.num_parameters == 1000  # planned, not measured
    assert row.notes == ("7 timed steps from before it stopped are kept in cells/c1; they are not a result",)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"status": "timeout", "reason": "no step for 900 s"}, "no step for 900 s"),
        (
            {"status": "error", "reason": "rank 1 raised ValueError", "failing_rank": 1},
            "rank 1 raised ValueError",
        ),
        ({"status": "killed", "failing_rank": 0, "stderr_tail": "x\nKilled\n"}, "rank 0: Killed"),
        ({"status": "error", "phase": "measure"}, "in phase measure"),
        ({"status": "error"}, "no reason recorded"),
    ],
)
def test_the_reason_is_the_best_one_there_is(
    fakes: Any, layout: RunLayout, fields: dict[str, Any], expected: str
) -> None:
    cell = fakes.spec("c1")
    fakes.write_cell(layout, cell, status=CellStatus(cell_id="c1", **fields))
    assert _one(layout, cell).error == expected


def test_a_cell_that_never_ran_and_one_without_timed_full_steps_say_so(fakes: Any, layout: RunLayout) -> None:
    row = _one(layout, fakes.spec("c1"))
    assert (row.status, row.error) == ("interrupted", "not run yet")
    assert _measured(row) == {None}
    cell = fakes.single("c2")
    fakes.write_cell(layout, cell, ranks=[[fakes.step(0, MS, warmup=True), fakes.step(1, MS, full=False)]])
    row = _one(layout, cell)
    assert row.status == "ok"
    assert row.step_ns_median is None
    assert row.epoch_ns is None
    assert any("no full step was timed" in note for note in row.notes)


def test_damaged_samples_cost_one_cell_its_result_and_leave_a_failed_one_its_reason(
    fakes: Any, layout: RunLayout
) -> None:
    bad, good = fakes.single("c1"), fakes.single("c2")
    for cell in (bad, good):
        fakes.write_cell(layout, cell, ranks=[fakes.series([MS] * 8)])
    path = layout.cell("c1").samples(0)
    path.write_bytes(path.read_bytes().replace(b'"step":3', b'"step":', 1))
    rows = fakes.flat(build_runs(layout, [bad, good], plans={}))
    assert rows[0].status == "error"
    assert "samples unreadable" in (rows[0].error or "")
    assert rows[1].step_ns_median == MS
    cell = fakes.single("c3")
    status = CellStatus(cell_id="c3", status="killed", reason="SIGKILL")
    fakes.write_cell(layout, cell, ranks=[fakes.series([MS] * 8)], status=status)
    layout.cell("c3").samples(0).write_bytes(b"not json\n{}\n")
    row = _one(layout, cell)
    assert (row.status, row.error) == ("killed", "SIGKILL")
    assert any("partial samples unreadable" in note for note in row.notes)


def test_baselines_are_what_speedups_refer_to_and_not_every_cell_on_one_rank(fakes: Any, layout: RunLayout) -> None:
    """In FP32 `single` goes before DDP on one rank; in bf16 the fewest ranks are two."""
    cells = [
        fakes.single("single1"),
        fakes.spec("ddp1", world_size=1, micro_batch=64),
        fakes.spec("ddp2", world_size=2),
        fakes.spec("half2", world_size=2, precision="bf16"),
        fakes.spec("half4", world_size=4, micro_batch=16, precision="bf16"),
    ]
    for cell in cells:
        fakes.write_cell(layout, cell, ranks=[fakes.series([10 * MS] * 8)] * cell.world_size)
    ids = tuple(cell.cell_id for cell in cells)
    write_record(layout.run, RunRecord(kind="bench", name="m", matrix={}, cells=ids, argv=("stepscope",)))
    assert baselines_of(layout) == {"single1", "half2"}
