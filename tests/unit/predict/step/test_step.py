"""Laws that a predicted step keeps, whatever its constants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stepscope.core.errors import UsageError
from stepscope.predict.step.calibration import Range, StepCalibration
from stepscope.predict.step.layout import Cluster, Layout
from stepscope.predict.step.model import find_model
from stepscope.predict.step.step import StepPrediction, predict_step

MODEL = find_model("llama3-8b")


def step(gpus: int = 64, model: str = "llama3-8b", gpu: str = "h100-sxm", **given: Any) -> StepPrediction:
    rest = given.get("tp", 1) * given.get("pp", 1) * given.get("cp", 1)
    layout = Layout(**{"dp": gpus // rest, "global_batch": 512, "seq_len": 4096, **given})
    return predict_step(find_model(model), Cluster.of(gpu, gpus, network="infiniband-ndr"), layout)


LAYOUTS = (
    {"zero": 0}, {"zero": 1}, {"zero": 2}, {"zero": 3}, {"tp": 8, "zero": 1}, {"pp": 4}, {"pp": 4, "vpp": 4}, {"cp": 4},
    {"zero": 3, "shard_group": 8}, {"recompute": "full"}, {"precision": "fp8"}, {"pp": 4, "schedule": "zero_bubble"},
)  # fmt: skip


@pytest.mark.parametrize("given", LAYOUTS, ids=str)
def test_the_budget_sums_to_the_step_and_no_part_is_negative(given: dict[str, Any]) -> None:
    found = step(**given)
    assert sum(found.budget.parts.values()) == found.step_s
    assert min(found.budget.parts.values()) >= 0
    assert found.low_s < found.step_s < found.high_s
    assert 0.2 < found.mfu["non-causal"] < 0.8
    assert found.memory.total > found.memory.states > 0


def test_efficiency_grows_with_the_model() -> None:
    shares = [step(8, name, global_batch=64).mfu["non-causal"] for name in ("gpt-125m", "gpt-1.3b", "gpt-13b")]
    assert shares == sorted(shares)
    assert shares[2] > 1.2 * shares[0]


def test_states_follow_the_zero_table() -> None:
    per_param = [step(zero=stage).memory.states / MODEL.params for stage in range(4)]
    assert per_param == pytest.approx([2 + 4 + 12, 6 + 12 / 64, 2 + 16 / 64, 16 / 64], rel=0.001)


def test_recomputation_costs_time_and_saves_memory() -> None:
    plain, full = step(), step(recompute="full")
    assert full.memory.activations < 0.2 * plain.memory.activations
    assert 1.25 < full.budget.compute / plain.budget.compute < 1.4
    assert full.mfu["causal"] < plain.mfu["causal"]
    assert full.hfu / full.mfu["causal"] == pytest.approx(4 / 3, abs=0.06)


def test_activations_are_those_of_the_paper() -> None:
    """Korthikanti et al.: s b h (10 + 24 / t) without it; here no dropout (2), but norms in FP32 (4)."""
    gpt = find_model("gpt-175b")
    for tp in (1, 8):
        layout = Layout(dp=1, tp=tp, seq_len=2048, sequence_parallel=False)
        found = predict_step(gpt, Cluster.of("a100-sxm4-80gb", tp), layout).memory.activations
        assert found / (2048 * 12288 * 96) == pytest.approx(12 + 24 / tp, rel=0.03)


def test_inputs_gathered_ahead_of_the_device_are_held_until_memory_runs_short() -> None:
    def gathered(**given: Any) -> float:
        layout = Layout(**{"tp": 8, "seq_len": 4096, **given})
        cluster = Cluster.of("h100-sxm", layout.gpus, network="infiniband-ndr")
        return predict_step(MODEL, cluster, layout, StepCalibration(gathered_ahead=42)).memory.gathered

    whole = 4096 * MODEL.hidden * 2
    assert gathered() == pytest.approx(42 * whole)
    assert gathered(pp=2, global_batch=8) == 0  # receiving waits for the device
    assert gathered(pp=4, global_batch=8) == pytest.approx(21 * whole)
    assert gathered(sequence_parallel=False) == 0
    assert gathered(micro_batch=16, global_batch=16) < 42 * 16 * whole


def test_pipeline_bubble_is_the_formula_where_stages_are_equal() -> None:
    deep = replace(find_model("gpt-175b"), vocab=8)
    cluster = Cluster.of("h100-sxm", 8, network="infiniband-ndr")
    for schedule, v, share in (("1f1b", 1, 7 / 39), ("interleaved", 3, 7 / 103), ("gpipe", 1, 7 / 39)):
        layout = Layout(pp=8, vpp=v, schedule=schedule, global_batch=32)  # type: ignore[arg-type]
        for simulated in (True, False):
            found = predict_step(deep, cluster, layout, simulated=simulated).budget
            assert found.bubble / (found.bubble + found.compute) == pytest.approx(share, rel=0.05)


def test_further_micro_batches_take_what_the_busiest_stage_takes() -> None:
    few, many = (step(pp=4, global_batch=16 * n) for n in (8, 64))
    assert many.budget.bubble == pytest.approx(few.budget.bubble, rel=0.02)


def test_the_host_is_a_floor_and_not_a_sum() -> None:
    small = step(8, "gpt-125m", global_batch=64, seq_len=1024)
    large = step(8, global_batch=64)
    assert small.budget.launch > 0
    assert large.budget.launch == 0


def test_gradients_reduced_each_micro_batch_cost_more() -> None:
    assert step(pp=2, sync_each=True).budget.dp > 3 * step(pp=2).budget.dp > 0


def test_tensor_parallelism_across_nodes_is_dearer() -> None:
    near, far = step(tp=8), step(tp=16)
    assert far.budget.tp > 1.5 * near.budget.tp


def test_a_slow_network_exposes_what_a_fast_one_hides() -> None:
    layout = Layout(dp=64, zero=3, global_batch=64, seq_len=2048)
    fast, slow = (
        predict_step(MODEL, Cluster.of("h100-sxm", 64, network=net), layout).budget.dp
        for net in ("infiniband-ndr", "ethernet-25g")
    )
    assert slow > 10 * fast


def test_calibration_scales_and_widens() -> None:
    cluster, layout = Cluster.of("h100-sxm", 8), Layout(dp=8, global_batch=64)
    plain = predict_step(MODEL, cluster, layout)
    fitted = StepCalibration(
        factor=2.0, log_sigma=0.1, range=Range(gpus=(8, 64), params=(10**9, 10**10), accelerators=("h100-sxm",))
    )
    inside = predict_step(MODEL, cluster, layout, fitted)
    outside = predict_step(find_model("llama3-70b"), cluster, layout, fitted)
    assert inside.step_s == pytest.approx(2 * plain.step_s)
    assert not inside.extrapolated
    assert "70.6 B" in outside.extrapolated[0]
    assert outside.high_s / outside.step_s > inside.high_s / inside.step_s > 1


def test_what_never_ran_is_said() -> None:
    notes = " ".join(step(cp=2, zero=2).notes)
    assert "cp 2, ZeRO-2: priced from a plan; stepscope has never run it" in notes


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"dp": 3}, "= 3, but there are 64 GPUs"),
        ({"dp": 64, "tp": 0}, "tp is 0"),
        ({"tp": 64, "dp": 1}, "32 heads are not divisible by tp 64"),
        ({"dp": 64, "global_batch": 100}, "not a multiple of dp 64"),
        ({"dp": 64, "global_batch": 4 * 2**20}, "batches count sequences, not tokens"),
        ({"dp": 64, "precision": "bf61"}, "did you mean 'bf16'"),
        ({"dp": 64, "ep": 8}, "has no experts"),
        ({"dp": 64, "zero": 4}, "zero is 4"),
        ({"dp": 1, "pp": 64}, "more stages than the 32 layers"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], said: str) -> None:
    layout = Layout(**{"global_batch": 64, "seq_len": 4096, **given})
    with pytest.raises(UsageError) as caught:
        predict_step(MODEL, Cluster.of("h100-sxm", 64), layout)
    assert said in str(caught.value)


def test_a_gpu_without_the_precision_is_refused() -> None:
    with pytest.raises(UsageError, match="no fp8"):
        step(8, gpu="a100-sxm4-80gb", precision="fp8", global_batch=64)


@pytest.mark.parametrize(
    ("gib", "fits", "tight"), [(68.0, True, False), (68.1, False, True), (79.0, False, True), (79.2, False, False)]
)
def test_a_layout_is_refused_only_above_what_the_driver_reports(gib: float, fits: bool, tight: bool) -> None:
    """An H100 of 80 GB has 79.1 GiB, 85 GB; 14% of them are the prediction's reserve, which is no refusal."""
    some = step(8, zero=3)
    rest = some.memory.total - some.memory.activations
    made = replace(some, memory=replace(some.memory, activations=gib * 2**30 - rest))
    assert (made.fits, made.tight) == (fits, tight)
