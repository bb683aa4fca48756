"""A cell of `bench` as the measured job that a prediction starts from."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests import fake_runs
from tests.bench_evidence import Made, made, profile
from tests.calibration_rows import MACHINE, sweep

from stepscope.core.errors import DataError, UsageError
from stepscope.predict.calibration import calibrate
from stepscope.predict.collectives.costs import Price
from stepscope.predict.job import replayed, sending
from stepscope.predict.pipeline import StageTime, simulate
from stepscope.predict.prices import Links, Prices, calibrated_prices, own_prices
from stepscope.predict.scale import check_gpus, predict_scale
from stepscope.predict.what_if import WhatIf
from stepscope.records.mesh import PipelineLayout, PipelineProfile, coordinates
from stepscope.records.samples import CellResult
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
    assert sum(g.size_bytes for g in job.gradients) == sum(call.size_bytes for call in job.calls)
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


HYBRID: dict[str, object] = {"strategy": "hsdp", "world_size": 4, "mesh": {"dp_replicate": 2, "dp_shard": 2}}
TENSOR: dict[str, object] = {
    "strategy": "tensor_parallel",
    "workload": "gpt",
    "model": {"num_layers": 2, "d_model": 64},
}
STAGES: dict[str, object] = {
    "strategy": "pipeline", "workload": "deep_mlp", "model": {"depth": 8, "width": 256}, "loss": "mse",
    "strategy_options": {"schedule": "gpipe", "micro_batches": 4},
}  # fmt: skip


def costing(**ms: float) -> Prices:
    """Each op its time, whatever it carries; groups of one send nothing. all_reduce grows with the ranks."""

    def of(op: str, _: int, ranks: int) -> Price:
        time = 0.0 if ranks < 2 else ms[op] * MS * (ranks - 1 if op == "all_reduce" else 1)
        return Price(time_ns=time, low_ns=time, high_ns=time)

    return Prices(source="paper", of=of)


def test_shards_stay_and_their_replicas_grow() -> None:
    cell = a_cell("h", **HYBRID, global_batch=128).result
    job = job_of_cell(cell, [cell])
    groups = {call.op: call.group for call in job.calls}
    assert groups == {"all_gather": "dp_shard", "reduce_scatter": "dp_shard", "all_reduce": "dp_replicate"}
    assert [job.group_size(group, 8) for group in ("dp_shard", "dp_replicate")] == [2, 4]
    prices = costing(all_gather=2, reduce_scatter=3, all_reduce=1)
    four, eight = predict_scale(job, [4, 8], prices).steps
    reductions = sum(call.op == "all_reduce" for call in job.calls)
    assert eight.comm_ns - four.comm_ns == reductions * 2 * MS  # 4 replicas for 2; shards gather as before
    assert eight.exposed_ns == eight.comm_ns  # CPU ranks overlap nothing
    with pytest.raises(UsageError, match="6 ranks is not a multiple of 4") as refused:
        check_gpus([6], replace(job, mesh={"dp_replicate": 1, "dp_shard": 4}), scaling="weak")
    assert refused.value.fix == "ask for 4 or 8"


def test_a_tensor_parallel_job_keeps_its_groups_and_gets_replicas_that_shard() -> None:
    cell = a_cell("t", **TENSOR, mesh={"tp": 2}, micro_batch=32, global_batch=32).result
    job = job_of_cell(cell, [cell])
    tp = [call for call in job.calls if call.group == "tp"]
    assert {call.group for call in job.calls} == {"tp", "dp"}
    assert all(call.activations and call.blocking for call in tp)
    prices = costing(all_gather=1, reduce_scatter=1, all_reduce=2)
    two, four = predict_scale(job, [2, 4], prices).steps
    assert two.exposed_ns == 2 * MS * sum(call.op == "all_reduce" for call in tp) + 1 * MS * sum(
        call.op == "all_gather" for call in tp
    )
    assert four.exposed_ns - two.exposed_ns == 1 * MS * (len(job.calls) - len(tp))
    assert any("replicas of tp2" in text for text in predict_scale(job, [4], prices).assumptions)
    sizes = [sending(job, gradients=1, activations=0.5).calls[at].size_bytes for at in (0, -1)]
    assert sizes == [tp[0].size_bytes // 2, job.calls[-1].size_bytes]
    with pytest.raises(UsageError, match="among parts of its ranks"):
        own_prices(job, Links())


def a_pipeline(**spec: object) -> CellResult:
    """Stages that take 10 ms forward and 20 ms backward, of a step that loads 1 ms and updates 6."""
    cell = a_cell("p", **STAGES, **{"mesh": {"pp": 2}, "micro_batch": 8, "global_batch": 8} | spec)
    layout = PipelineLayout(schedule="gpipe", ranks=2, micro_batches=4)
    spans = simulate(layout, [StageTime(forward_ns=10 * MS, backward_ns=20 * MS)]).spans()
    summaries = tuple(
        replace(
            summary,
            backward=None,
            model_part=at,
            pipeline=PipelineProfile(
                layout=layout, split=(5, 4), synced_ns=0, steps=(tuple(s for s in spans if s.rank == at),)
            ),
        )
        for summary in cell.result.summaries
        for at in [coordinates(cell.result.spec.mesh, cell.result.spec.world_size, summary.rank)["pp"]]
    )
    return replace(cell.result, summaries=summaries)


def test_a_pipeline_is_its_simulated_schedule_with_priced_messages_and_the_rest_of_its_step() -> None:
    cell = a_pipeline()
    job = job_of_cell(cell, [cell])
    assert job.length_ns == pytest.approx((1 + (4 + 1) * 30 + 6) * MS)  # (m + p - 1) (forward + backward)
    free = costing(send_recv=0, all_reduce=0)
    assert replayed(job, lambda *call: free.of(*call).time_ns).exposed_ns == 0
    prices = costing(send_recv=2, all_reduce=7)
    two, four = predict_scale(job, [2, 4], prices).steps
    assert two.exposed_ns == pytest.approx(2 * 4 * 2 * MS)  # 4 messages ahead, 4 back: none before its receiver idles
    assert four.exposed_ns - two.exposed_ns == pytest.approx(7 * MS)  # two replicas add up their gradients
    assert [len(sizes) for sizes in job.pipeline.reductions] == [1, 1]
    assert job.pipeline.messages == ((2 * 256 * 4, 0), (0, 2 * 256 * 4))
    twice = predict_scale(job, [2], prices, what=WhatIf(batch=2)).steps[0]
    assert twice.compute_ns == pytest.approx(150 * 1.95 * MS + 6 * MS)


def test_ranks_that_share_an_emulated_host_are_refused() -> None:
    cell = a_pipeline(world_size=4, mesh={"pp": 2, "dp": 2}, global_batch=16, network="1gbit:2")
    with pytest.raises(UsageError, match="several ranks on a host of network 1gbit:2"):
        job_of_cell(cell, [cell])


def test_the_cell_with_most_ranks_is_taken_and_names_that_are_offered() -> None:
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
    short, longer = (a_cell(name, world_size=n).result for name, n in (("ddp", 2), ("ddp-4", 4)))
    alone = made("single", strategy="single", world_size=1).result
    assert choose_cell([short, longer, alone], "ddp") is short, "another name only begins with it"
    with pytest.raises(UsageError) as refused:
        choose_cell([short, longer, alone], "single")
    assert "--cell single" not in (refused.value.fix or "")
    assert "single" in (refused.value.why or "")
