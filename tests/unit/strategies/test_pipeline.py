"""What a pipeline plans, and what it refuses before a rank starts."""

from __future__ import annotations

from typing import Any

import pytest
from tests import fake_runs

from stepscope.predict.specs import specs_of
from stepscope.records.plan import InputNeeds, ModelFacts, Setting
from stepscope.strategies.pipeline import STRATEGY, PipelineOptions
from stepscope.workloads import REGISTRY as WORKLOADS

NEEDS = {
    "mlp": InputNeeds(kind="features", num_features=10, num_classes=4),
    "gpt": InputNeeds(kind="lm", seq_len=8, vocab_size=11),
    "text_classifier": InputNeeds(kind="tokens", num_classes=4),
}


def facts(workload: str, **options: Any) -> ModelFacts:
    spec = WORKLOADS.load(workload)
    return spec.facts(spec.options(**options), NEEDS[workload], "float32")


def setting(world_size: int = 2, **changes: Any) -> Setting:
    fields = {"mesh": {"pp": world_size}, "micro_batch": 8, "precision": "fp32", **changes}
    return Setting(device="cpu", backend="gloo", world_size=world_size, optimizer="sgd", **fields)


MLP = facts("mlp", layers=[12, 12, 12])


@pytest.mark.parametrize(
    ("model", "where", "options", "said"),
    [
        (MLP, setting(8), {"micro_batches": 8}, "the model has 4 blocks, fewer than 8 stages"),
        (MLP, setting(), {"micro_batches": 3}, "8 samples cannot be cut into 3 equal micro-batches: .*a multiple of 3"),
        (MLP, setting(micro_batch=2), {"micro_batches": 4}, "2 samples cannot be cut into 4 equal micro-batches"),
        (MLP, setting(4), {"micro_batches": 2}, "1f1b needs as many micro-batches as stages or more: 2 are fewer than 4"),
        (MLP, setting(), {"split": [3, 2]}, r"split \[3, 2\] is not 4 blocks over 2 stages, .*: \[2, 2\] would be"),
        (MLP, setting(), {"split": [4, 0]}, "with 1 or more in each"),
        (MLP, setting(4), {"schedule": "interleaved"}, r"fewer than 8 stages \(4 ranks x 2 chunks\)"),
        (MLP, setting(mesh={}), {}, "it needs 2 ranks along pp or more"),
        (MLP, setting(precision="amp_fp16"), {}, "use amp_bf16"),
        (MLP, setting(activation_checkpointing="full"), {"schedule": "zbv"}, "run a block again for each: use gpipe"),
        (facts("text_classifier"), setting(), {}, "does not say where it can be cut into stages: gpt, mlp and deep_mlp do"),
        (facts("gpt", num_layers=1), setting(), {}, "the model has 1 block, fewer than 2 stages"),
        (MLP, setting(), {"chunks": 2}, "1f1b has one chunk a rank, not 2"),
    ],
)  # fmt: skip
def test_what_has_no_schedule_is_refused(model: ModelFacts, where: Setting, options: dict[str, Any], said: str) -> None:
    import re

    reason = STRATEGY.requires(model, where, PipelineOptions(**options))
    assert re.search(said, reason), reason


def test_all_that_is_wrong_is_said_at_once() -> None:
    reason = STRATEGY.requires(MLP, setting(8, micro_batch=3, precision="amp_fp16"), PipelineOptions())
    assert reason.count(";") == 3, reason


def test_a_rank_between_two_others_sends_and_receives_on_both_sides_and_reduces_its_own_gradients() -> None:
    where = setting(6, mesh={"pp": 3, "dp": 2}, accumulation=2)
    options = PipelineOptions(micro_batches=4, split=[1, 2, 1])
    assert STRATEGY.requires(MLP, where, options) is None
    assert STRATEGY.plan_of_rank is not None
    plans = [STRATEGY.plan_of_rank(MLP, where, options, rank) for rank in range(6)]
    counts = [sum(op.op in ("send", "recv") for op in plan) for plan in plans]
    assert counts == [16, 16, 32, 32, 16, 16], "2 micro-steps x 4 micro-batches x both directions x borders"
    assert {op.numel for plan in plans for op in plan if op.op == "send"} == {2 * 12}
    assert [plan[-1].numel for plan in plans[::2]] == [10 * 12 + 12, 2 * (12 * 12 + 12), 12 * 4 + 4]
    assert plans[0][-1].members == ("layers.0.weight", "layers.0.bias")
    assert STRATEGY.comm_plan(MLP, where, options) == plans[2], "that of the rank that exchanges most"


@pytest.mark.parametrize(("micro_batches", "kept"), [(2, 8_388_608), (4, 4_718_592), (8, 2_883_584), (16, 1_966_080)])
def test_micro_batches_in_flight_keep_the_whole_batch_that_they_are_views_of(micro_batches: int, kept: int) -> None:
    """As counted by ranks of the preset pipeline-microbatches."""
    spec = WORKLOADS.load("deep_mlp")
    model = spec.facts(spec.options(depth=16, width=512), InputNeeds(kind="features", num_features=512), "float32")
    plan = STRATEGY.memory_plan(model, setting(micro_batch=512), PipelineOptions(micro_batches=micro_batches))
    assert sum(plan.activations.values()) == kept
    gpipe = STRATEGY.memory_plan(
        model, setting(micro_batch=512), PipelineOptions(micro_batches=micro_batches, schedule="gpipe")
    )
    assert sum(gpipe.activations.values()) == 9_437_184


def test_zbv_folds_back_so_that_the_border_in_the_middle_needs_no_message() -> None:
    options = PipelineOptions(schedule="zbv")
    assert STRATEGY.plan_of_rank is not None
    plans = [STRATEGY.plan_of_rank(MLP, setting(), options, rank) for rank in range(2)]
    assert [len(plan) for plan in plans] == [16, 16], (
        "borders 0-1 and 2-3 of 4 stages, 4 micro-batches, both directions"
    )


def test_autocast_makes_messages_of_linear_layers_narrow_and_leaves_a_residual_stream_wide() -> None:
    gpt = facts("gpt", num_layers=2, d_model=8, n_heads=2, vocab_size=11, max_seq_len=8)
    for model, dtype in ((MLP, "bfloat16"), (gpt, "float32")):
        plan = STRATEGY.comm_plan(model, setting(precision="amp_bf16"), PipelineOptions())
        assert {op.dtype for op in plan} == {dtype}


def test_memory_is_of_the_rank_with_most_parameters_and_of_what_it_receives() -> None:
    plan = STRATEGY.memory_plan(MLP, setting(), PipelineOptions(split=[1, 3]))
    assert plan.parameter_bytes == 4 * sum(p.numel for p in MLP.parameters[2:])
    assert plan.communication_bytes == 4 * (2 * 12) * 4


def test_a_cell_that_is_refused_plans_nothing() -> None:
    """`bench` shows it beside the others: that it is refused is known there, and why."""
    cell = fake_runs.spec("x", strategy="pipeline", world_size=4, mesh={"pp": 4}, micro_batch=32)  # 3 layers
    assert specs_of(cell).comm_plan == ()
