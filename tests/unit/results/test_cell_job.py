"""A cell of `bench` as the measured job that a prediction starts from."""

from __future__ import annotations

import pytest
from tests import fake_runs
from tests.bench_evidence import Made, made, profile
from tests.calibration_rows import MACHINE, sweep

from stepscope.core.errors import DataError, UsageError
from stepscope.predict.calibration import calibrate
from stepscope.predict.prices import calibrated_prices
from stepscope.predict.scale import predict_scale
from stepscope.results.cell_job import choose_cell, job_of_cell

MS = 1_000_000


def a_cell(cell_id: str = "c", **spec: object) -> Made:
    return made(cell_id, profile=profile(fake_runs.spec(cell_id, **spec)), batch_rule="micro_batch", **spec)  # type: ignore[arg-type]


def test_a_cell_gives_its_profile_its_plan_and_its_samples() -> None:
    two, four = a_cell("two").result, a_cell("four", world_size=4, global_batch=128).result
    job = job_of_cell(two, [two, four])
    assert (job.ranks, job.source, job.global_batch) == (2, "run", 64)
    assert (job.length_ns, job.tail_ns) == (95 * MS, 5 * MS)
    assert {call.op for call in job.calls} == {"all_reduce"}
    assert all(30 * MS < call.ready_ns <= call.needed_ns == 90 * MS for call in job.calls)
    assert sum(g.size_bytes for g in job.gradients) == job.comm_bytes
    assert [ranks for ranks, _ in job.points] == [2, 4]
    # Forward and backward jitter by 1% of 30 and 60 ms, each rank on its own.
    assert job.spread_ns == pytest.approx(0.67 * MS, rel=0.3)


def test_with_a_calibration_the_measured_step_is_a_check() -> None:
    rows = sweep(alpha_ns=1e5, beta_bytes_per_s=1e8)
    prices = calibrated_prices(calibrate(rows, run="x", machine=MACHINE), backend="gloo", network=None)
    found = predict_scale(job_of_cell(a_cell().result, ()), [2, 8], prices)
    assert found.replay_checks
    assert found.steps[1].step_ns > found.steps[0].step_ns


def test_a_sharded_cell_computes_as_the_whole_model_beside_it_does() -> None:
    whole, sharded = a_cell("whole").result, made("sharded", strategy="fsdp2", batch_rule="micro_batch").result
    job = job_of_cell(sharded, [whole, sharded])
    assert "computation is that of ddp (cell whole)" in job.notes[0]
    assert job.length_ns == 95 * MS
    assert {call.op for call in job.calls} == {"all_gather", "reduce_scatter"}
    assert all(call.blocking for call in job.calls)  # CPU ranks overlap nothing
    alone = made("alone", strategy="fsdp2", batch_rule="micro_batch", world_size=1, global_batch=32, comm_ms=0).result
    copies = job_of_cell(sharded, [whole, alone, sharded])
    assert copies.length_ns == pytest.approx(97 * MS, rel=0.01)  # what the one rank takes
    assert "for its own copies" in copies.notes[0]
    with pytest.raises(DataError, match="no backward profile"):
        job_of_cell(sharded, [sharded])


def test_groups_within_the_job_are_refused() -> None:
    cell = made("h", strategy="hsdp", world_size=4, global_batch=128, mesh={"dp_replicate": 2, "dp_shard": 2}).result
    with pytest.raises(UsageError, match="communicates in groups"):
        job_of_cell(cell, [cell])


def test_the_cell_with_most_ranks_is_taken_and_several_kinds_are_listed() -> None:
    one, two, naive = (each.result for each in (
        a_cell("one", world_size=1, global_batch=32), a_cell("two"), a_cell("naive", strategy="naive")
    ))  # fmt: skip
    assert choose_cell([one, two], None) is two
    assert choose_cell([one, two, naive], "nai") is naive
    with pytest.raises(UsageError, match="several kinds") as refused:
        choose_cell([two, naive], None)
    assert "--cell naive" in (refused.value.fix or "")
    with pytest.raises(UsageError, match="names 0 cells"):
        choose_cell([two], "x")
    with pytest.raises(UsageError, match="no cell of this run communicates"):
        choose_cell([made("s", strategy="single", world_size=1).result], None)
