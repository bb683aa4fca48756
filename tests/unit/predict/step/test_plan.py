"""The search for a layout: what it keeps, what it finds, what it warns of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stepscope.core.errors import UsageError
from stepscope.predict.step.alternatives import cause_of, warnings_of
from stepscope.predict.step.calibration import StepCalibration
from stepscope.predict.step.layout import Cluster, Layout, errors
from stepscope.predict.step.model import find_model
from stepscope.predict.step.plan import cell_of, matrix_yaml, plan, slower_because
from stepscope.predict.step.step import predict_step
from stepscope.store.yaml_loader import parse_yaml

MODEL = find_model("llama3-8b")
CLUSTER = Cluster.of("h100-sxm", 16, network="infiniband-ndr")
BASE = Layout(global_batch=64, seq_len=4096)


def test_the_plan_is_the_best_of_all_layouts_that_fit() -> None:
    """Against brute force over what the search may choose from."""
    found = plan(MODEL, CLUSTER, BASE)
    fastest = 0.0
    for tp in (1, 2, 4, 8, 16):
        for pp in (1, 2, 4, 8, 16):
            for zero in (0, 1, 3):
                for micro in (1, 2, 4, 8):
                    for recompute in ("none", "full"):
                        if 16 % (tp * pp) or (zero == 3 and pp > 1):
                            continue
                        layout = Layout(
                            dp=16 // tp // pp, tp=tp, pp=pp, zero=zero, micro_batch=micro, global_batch=64,
                            seq_len=4096, recompute=recompute,  # type: ignore[arg-type]
                        )  # fmt: skip
                        if not errors(MODEL, CLUSTER, layout):
                            priced = predict_step(MODEL, CLUSTER, layout)
                            fastest = max(fastest, priced.tokens_per_s if priced.fits else 0.0)
    assert found.best[0].tokens_per_s >= 0.999 * fastest > 0
    assert all(p.fits and p.layout.gpus == 16 and p.layout.global_batch == 64 for p in found.best)
    assert [p.step_s for p in found.best] == sorted(p.step_s for p in found.best)


def test_what_is_fixed_stays() -> None:
    base = Layout(tp=4, zero=3, micro_batch=2, global_batch=64, seq_len=4096, precision="fp8")
    found = plan(MODEL, CLUSTER, base, frozenset({"tp", "zero", "micro_batch"}))
    assert found.best
    for p in found.best:
        assert (p.layout.tp, p.layout.zero, p.layout.micro_batch, p.layout.precision) == (4, 3, 2, "fp8")


def test_the_obvious_layouts_lose_for_a_reason() -> None:
    many = Cluster.of("h100-sxm", 32)
    reasons = {a.name: a.why for a in plan(find_model("llama3-70b"), many, BASE).alternatives}
    assert reasons["DDP"].startswith("does not fit even with mbs=1")
    assert plan(MODEL, CLUSTER, BASE).alternatives[-1].why.split()[1] == "slower"


def test_a_layout_that_takes_of_the_reserve_is_found_where_no_other_is() -> None:
    """Published layouts of that kind ran: it is the answer where nothing keeps the reserve, and no layout before that."""
    pinned = {"tp": 1, "pp": 1, "zero": 3, "recompute": "none", "micro_batch": 1}
    only = Layout(global_batch=16, dp=16, **{**pinned, "seq_len": 9216})
    (found,) = plan(MODEL, CLUSTER, only, frozenset(pinned) | {"shard_group"}).best
    assert found.tight
    assert all(p.fits for p in plan(MODEL, CLUSTER, only, frozenset({"tp", "pp", "zero"})).best)


def test_a_model_too_large_fits_nowhere() -> None:
    found = plan(find_model("llama3-405b"), CLUSTER, BASE)
    assert not found.best
    assert found.dropped > 0


def test_a_batch_that_divides_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="no layout"):
        plan(MODEL, CLUSTER, Layout(tp=1, pp=1, global_batch=7, seq_len=4096), frozenset({"tp", "pp"}))


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        ({"dp": 16, "sync_each": True, "seq_len": 512, "global_batch": 256}, "sync per micro-batch"),
        ({"dp": 1, "tp": 16}, "TP across nodes"),
        ({"dp": 1, "pp": 16, "global_batch": 16}, "bubble"),
    ],
)
def test_a_pathological_layout_is_warned_of_with_its_cause(given: dict[str, Any], cause: str) -> None:
    layout = Layout(**{"global_batch": 64, "seq_len": 4096, **given})
    assert warnings_of(predict_step(MODEL, CLUSTER, layout))[0].cause == cause


def test_the_cause_of_a_slow_layout_is_the_mistake_that_costs_nothing_to_correct() -> None:
    small, cluster = find_model("gpt-1.3b"), Cluster.of("h100-sxm", 64, network="infiniband-xdr")
    good = predict_step(small, cluster, Layout(dp=64, zero=1, micro_batch=2, global_batch=512, seq_len=512))
    slow = Layout(dp=2, tp=4, pp=8, global_batch=512, seq_len=512)
    once, each = (predict_step(small, cluster, replace(slow, sync_each=sync)) for sync in (False, True))
    assert each.budget.launch > each.budget.dp > once.budget.dp
    assert [cause_of(p, good) for p in (once, each)] == ["launch-bound", "sync per micro-batch"]
    assert cause_of(good, good) is None
    assert slower_because(each, good).split(" (")[0].endswith("slower: sync per micro-batch")


def test_a_launch_bound_layout_is_warned_of() -> None:
    small, cluster = find_model("gpt-125m"), Cluster.of("h100-sxm", 8)
    found = predict_step(small, cluster, Layout(dp=8, global_batch=64, seq_len=512), StepCalibration())
    assert [w.cause for w in warnings_of(found)] == ["launch-bound"]
    assert not warnings_of(predict_step(MODEL, CLUSTER, Layout(dp=16, zero=3, micro_batch=4, global_batch=64)))


def test_the_matrix_has_what_bench_can_run_and_says_what_it_cannot() -> None:
    layouts = [Layout(dp=2, tp=2, pp=4, global_batch=8), Layout(dp=16, micro_batch=2, global_batch=64, seq_len=4096)]
    text = matrix_yaml(MODEL, layouts)
    document = parse_yaml(text, source="plan.yaml")
    assert not document.problems
    assert [cell["strategy"] for cell in document.value["include"]] == ["ddp"]
    assert document.value["include"][0]["accumulation"] == 2
    assert "bench has no strategy with tp and pp" in text
    assert cell_of(Layout(cp=2))[0] == ""
    assert "chunks: 2" in cell_of(Layout(pp=2, vpp=2, schedule="interleaved", global_batch=4))[0]
    assert "dp_shard: 2" in cell_of(Layout(dp=8, zero=3, shard_group=2, global_batch=8))[0]
    assert "strategy: tensor_parallel" in cell_of(Layout(tp=4))[0]
    with pytest.raises(UsageError, match="can run none"):
        matrix_yaml(MODEL, layouts[:1])


def test_the_matrix_keeps_recomputation_optimizer_and_sharding_of_the_plan() -> None:
    layout = Layout(dp=16, zero=3, reshard=False, recompute="full", optimizer="sgd", global_batch=64)
    document = parse_yaml(matrix_yaml(MODEL, [layout]), source="plan.yaml").value
    (cell,) = document["include"]
    assert (cell["activation_checkpointing"], cell["strategy"]) == ("full", "fsdp2")
    assert cell["strategy_options"] == {"reshard_after_forward": False}
    assert (document["base"]["optimizer"], document["base"]["precision"]) == ("sgd", "bf16")
    assert cell_of(replace(layout, recompute="half")) == (
        "", "bench has no recomputation of every second matrix product",
    )  # fmt: skip
    assert cell_of(Layout(dp=8, tp=2, zero=3, shard_group=4))[0] == "", "hsdp beside tp is another job"


@pytest.mark.parametrize(
    ("model", "layout", "why"),
    [
        ("mixtral-8x7b", Layout(dp=16), "8 experts"),
        ("deepseek-v3", Layout(dp=16), "experts"),
        ("llama2-7b", Layout(dp=16, precision="fp8"), "no fp8"),
    ],
)
def test_a_matrix_of_another_job_than_the_planned_one_is_refused(model: str, layout: Layout, why: str) -> None:
    with pytest.raises(UsageError) as refused:
        matrix_yaml(find_model(model), [layout])
    assert why in (refused.value.why or "")


def test_what_stands_in_for_the_model_is_in_the_matrix() -> None:
    text = matrix_yaml(find_model("llama3-8b"), [Layout(dp=16, global_batch=64)])
    assert "# not the same: 8 key and value heads are 32" in text
