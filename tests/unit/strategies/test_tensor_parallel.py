"""What tensor parallelism declares, without torch: what it refuses, what a rank holds, what travels by layer."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from stepscope.records.plan import InputNeeds, ModelFacts, Setting
from stepscope.strategies.tensor_parallel import STRATEGY
from stepscope.workloads import REGISTRY as WORKLOADS

SETTING = Setting(
    device="cpu", backend="gloo", world_size=2, mesh={"tp": 2}, precision="fp32", optimizer="adamw", micro_batch=8
)
TEXT = {"d_model": 64, "n_heads": 4, "num_layers": 2, "max_seq_len": 16, "vocab_size": 100}
SEQUENCE, LOSS = {"sequence_parallel": True}, {"loss_parallel": True}


def facts(workload: str = "gpt", **model: Any) -> ModelFacts:
    family = WORKLOADS.load(workload)
    options = family.options(**(TEXT | model if workload != "mlp" else model))
    needs = replace(family.needs(options), num_features=10, num_classes=3)
    return family.facts(options, InputNeeds(**{k: getattr(needs, k) for k in needs.__dataclass_fields__}), "float32")


def on(tp: int) -> Setting:
    return replace(SETTING, world_size=tp, mesh={"tp": tp})


@pytest.mark.parametrize(
    ("model", "setting", "options", "says"),
    [
        (facts("mlp", layers=[]), SETTING, {}, "does not say which of its layers can be divided"),
        (facts(), replace(SETTING, mesh={}), {}, "mesh: {tp: 2}"),
        (facts(), on(3), {}, "tp 3 does not divide the attention heads (4), the rows of tokens (100)"),
        (facts(), on(3), {}, "; tp 2 or 4 would"),
        (facts(n_heads=1), SETTING, {}, "no tp does: change the model"),
        (facts(max_seq_len=9), SETTING, SEQUENCE, "tp 2 does not divide the positions (9)"),
        (facts("text_classifier"), SETTING, SEQUENCE, "treats every position alike"),
        (facts("text_classifier"), SETTING, LOSS, "needs a head whose scores are divided"),
        (facts(), replace(SETTING, precision="amp_fp16"), {}, "use amp_bf16"),
    ],
)
def test_what_cannot_run_is_refused_with_what_would(
    model: ModelFacts, setting: Setting, options: dict[str, Any], says: str
) -> None:
    reason = STRATEGY.requires(model, setting, STRATEGY.options(**options))
    assert says in reason


def test_all_that_is_wrong_is_said_at_once() -> None:
    where = replace(on(3), precision="amp_fp16")
    reason = STRATEGY.requires(facts("text_classifier"), where, STRATEGY.options(**SEQUENCE, **LOSS))
    assert reason.count("; ") == 4, reason  # the last one names the tp that would fit behind another semicolon


@pytest.mark.parametrize("options", STRATEGY.variants, ids=str)
def test_what_fits_is_accepted(options: dict[str, Any]) -> None:
    assert STRATEGY.requires(facts(), on(4), STRATEGY.options(**options)) is None


def test_a_rank_holds_its_share_of_the_divided_layers_and_all_of_the_others() -> None:
    model = facts()
    whole = model.gradient_bytes
    # positions, five norms, and the biases of what is divided by inputs
    undivided = 4 * (16 * 64 + 5 * 2 * 64 + 2 * 2 * 64)
    plan = STRATEGY.memory_plan(model, on(4), STRATEGY.options())
    assert plan.parameter_bytes == plan.gradient_bytes == undivided + (whole - undivided) // 4
    assert plan.optimizer_bytes == 2 * plan.parameter_bytes


def test_two_reductions_a_block_and_pass() -> None:
    ops = STRATEGY.comm_plan(facts(), replace(SETTING, accumulation=3), STRATEGY.options())
    assert all((op.group, op.blocking) == ("tp", True) for op in ops)
    assert Counter((op.op, op.phase) for op in ops if op.module.startswith("blocks.1")) == {
        ("all_reduce", "forward"): 3 * 2,
        ("all_reduce", "backward"): 3 * 2,
    }
    assert {op.numel for op in ops if op.op == "all_reduce"} == {8 * 16 * 64}


def test_sequence_parallelism_moves_the_same_bytes_in_halves() -> None:
    """An all-reduce is a reduce-scatter and an all-gather (Korthikanti et al. 2022, section 4.2.2)."""
    ops = STRATEGY.comm_plan(facts(), SETTING, STRATEGY.options(**SEQUENCE))
    assert Counter((op.op, op.phase) for op in ops if op.module.startswith("blocks.1")) == {
        ("all_gather", "forward"): 2,
        ("reduce_scatter", "forward"): 2,
        ("all_gather", "backward"): 2,
        ("reduce_scatter", "backward"): 2,
        ("all_reduce", "after_backward"): 4,  # weight and bias of two norms
    }


def test_a_parallel_loss_sends_values_by_position_in_place_of_scores() -> None:
    ops = STRATEGY.comm_plan(facts(), SETTING, STRATEGY.options(**LOSS))
    assert [op.numel for op in ops if op.module == "loss"] == [8 * 16] * 3
    assert not any(op.op == "all_gather" for op in ops)
