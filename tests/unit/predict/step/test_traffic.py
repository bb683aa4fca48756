"""What the step model sends is what the strategies that stepscope runs declare."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from stepscope.predict.step.layout import Layout
from stepscope.predict.step.model import ModelShape
from stepscope.predict.step.traffic import HeldParameters, step_calls
from stepscope.records.plan import Setting
from stepscope.strategies import REGISTRY as STRATEGIES
from stepscope.workloads import REGISTRY as WORKLOADS

WORLD, LAYERS, WIDTH, SEQ, MICRO = 4, 12, 64, 32, 8
GPT = ModelShape(
    name="gpt", layers=LAYERS, hidden=WIDTH, heads=4, kv_heads=4, head_dim=16, ffn=256, gated=False, vocab=64,
    tied=False,
)  # fmt: skip
OPTIONS = {"d_model": WIDTH, "n_heads": 4, "num_layers": LAYERS, "vocab_size": 64, "max_seq_len": SEQ}


def declared(
    strategy: str, *, accumulation: int = 1, options: dict[str, Any] | None = None, **mesh: int
) -> Counter[str]:
    """Bytes of a step by op, of the second rank."""
    workload, spec = WORKLOADS.load("gpt"), STRATEGIES.load(strategy)
    model = workload.options.model_validate(OPTIONS)
    facts = workload.facts(model, workload.needs(model), "float32")
    setting = Setting(
        device="cpu", backend="gloo", world_size=WORLD, precision="fp32", optimizer="adamw", mesh=mesh,
        accumulation=accumulation, micro_batch=MICRO,
    )  # fmt: skip
    made = spec.options.model_validate(options or {})
    assert spec.requires is None or spec.requires(facts, setting, made) is None
    plan = (
        spec.comm_plan(facts, setting, made)
        if spec.plan_of_rank is None
        else spec.plan_of_rank(facts, setting, made, 1)
    )
    found: Counter[str] = Counter()
    for op in plan:
        found[op.op] += op.size_bytes
    return found


def priced(layout: Layout) -> Counter[str]:
    found: Counter[str] = Counter()
    layers = LAYERS // layout.pp
    held = HeldParameters(dense=GPT.params / layout.pp, expert=0)
    for calls in step_calls(GPT, layout, held, layers=layers, moe_layers=0):
        found[calls.op] += round(calls.count * calls.size_bytes)
    return found


@pytest.mark.parametrize(
    ("strategy", "layout", "mesh"),
    [
        ("ddp", {}, {}),
        ("fsdp2", {"zero": 3}, {}),
        ("hsdp", {"zero": 3, "shard_group": 2}, {"dp_replicate": 2, "dp_shard": 2}),
    ],
)
@pytest.mark.parametrize("accumulation", [1, 3])
def test_states_travel_as_the_strategy_says(
    strategy: str, layout: dict[str, Any], mesh: dict[str, int], accumulation: int
) -> None:
    batch = WORLD * MICRO * accumulation
    mine = priced(
        Layout(
            dp=WORLD, precision="fp32", micro_batch=MICRO, global_batch=batch, seq_len=SEQ, sync_each=False, **layout
        )
    )
    theirs = declared(strategy, accumulation=accumulation, **mesh)
    assert mine.keys() == theirs.keys()
    for op, size in theirs.items():
        assert mine[op] == pytest.approx(size, rel=0.12), op


def test_messages_travel_as_the_pipeline_says() -> None:
    layout = Layout(pp=WORLD, precision="fp32", micro_batch=MICRO // 4, global_batch=MICRO, seq_len=SEQ)
    theirs = declared("pipeline", options={"micro_batches": 4}, pp=WORLD)
    assert priced(layout)["send_recv"] == theirs["send"] == theirs["recv"]


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_activations_travel_as_tensor_parallelism_says(sequence_parallel: bool) -> None:
    layout = Layout(
        tp=WORLD,
        precision="fp32",
        micro_batch=MICRO,
        global_batch=MICRO,
        seq_len=SEQ,
        sequence_parallel=sequence_parallel,
    )
    theirs = declared("tensor_parallel", options={"sequence_parallel": sequence_parallel}, tp=WORLD)
    mine = priced(layout)
    assert mine
    for op, size in mine.items():
        assert size == pytest.approx(theirs[op], rel=0.08), op  # besides: embedding, output, gradients of norms


def test_what_has_no_strategy_has_a_plan() -> None:
    moe = ModelShape(
        name="moe", layers=2, hidden=64, heads=4, kv_heads=4, head_dim=16, ffn=256, gated=True, vocab=64, tied=False,
        experts=8, top_k=2, moe_ffn=64,
    )  # fmt: skip
    layout = Layout(dp=4, cp=2, ep=4, zero=2, global_batch=8, seq_len=64)
    calls = {c.group: c for c in step_calls(moe, layout, HeldParameters(dense=1e5, expert=1e5), layers=2, moe_layers=2)}
    assert calls["ep"].op == "all_to_all"
    assert calls["ep"].size_bytes == 32 * 64 * 2 * moe.top_k
    assert calls["ep"].count == 2 * 2 * 2 * layout.micro_batches
    assert calls["cp"].size_bytes == 2 * 32 * 64 * 2
    assert {c.op for c in calls.values()} == {"all_to_all", "send_recv", "reduce_scatter", "all_gather"} - {
        "all_gather"
    }
