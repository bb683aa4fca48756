"""What each rank holds, counted tensor by tensor, is what strategy and workload planned."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from tests.dist.models import batch, built, setting

from stepscope.predict.specs import memory_plan
from stepscope.rank.memory import TensorAccount
from stepscope.rank.mesh import Mesh
from stepscope.rank.plancheck import check, observe
from stepscope.rank.strategies import REGISTRY as IMPLEMENTATIONS
from stepscope.rank.training import recompute
from stepscope.records.plan import InputNeeds, MemoryPlan
from stepscope.records.samples import PlanCheck
from stepscope.strategies import REGISTRY as STRATEGIES

GPT = {"d_model": 32, "n_heads": 2, "num_layers": 3, "max_seq_len": 8, "vocab_size": 64}
NEEDS = InputNeeds(kind="lm", seq_len=GPT["max_seq_len"], vocab_size=GPT["vocab_size"])
SAMPLES = 3
STATES, ACTIVATIONS = 0.02, 0.10

CASES: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("ddp", {}, "none"),
    ("zero1", {}, "none"),
    ("zero1", {"parameters_as_bucket_view": True}, "none"),
    ("fsdp2", {}, "none"),
    ("fsdp2", {"reshard_after_forward": False}, "none"),
    ("fsdp2", {"blocks_per_unit": 2}, "full"),
    ("fsdp2", {}, "selective"),
    ("ddp", {}, "full"),
    ("tensor_parallel", {}, "none"),
    ("tensor_parallel", {"sequence_parallel": True, "loss_parallel": True}, "none"),
)


def hold(
    mesh: Mesh, key: str, variant: dict[str, Any], mode: Any
) -> tuple[dict[str, int], MemoryPlan, PlanCheck, torch.Tensor]:
    spec = STRATEGIES.load(key)
    options = spec.options(**variant)
    mesh = mesh.shaped({"tp": 2} if key == "tensor_parallel" else {})
    where = setting(mesh.world_size, mesh.shape, optimizer="adam", micro_batch=SAMPLES, activation_checkpointing=mode)
    task, facts = built("gpt", GPT, NEEDS, "float32")
    blocks = [task.module.get_submodule(path) for path in facts.blocks]
    recomputed = None if mode == "none" else recompute(blocks, mode)
    session = IMPLEMENTATIONS.load(key)(task.module, mesh, options, facts)
    optimizer = session.optimizer(torch.optim.Adam, lr=1e-3)
    x, _ = batch(NEEDS, SAMPLES)

    def step() -> None:
        with session.micro_step(last=True):
            (task.loss_sum(session.trainable(x), x) / SAMPLES / mesh.data_size * session.loss_factor).backward()
        session.finish()
        optimizer.step()

    for _ in range(2):  # as many for all: their gradients are compared
        step()
        session.zero_grad()
    verdict = check(spec.comm_plan(facts, where, options), observe(step, mesh))
    gradients = torch.cat([g.flatten() for _, g in sorted(session.full_gradients().items())])
    session.zero_grad()
    account = TensorAccount(task.module, session.parameters, optimizer, recomputed=recomputed)
    with account.step():
        step()
    session.close()
    return account.sizes, memory_plan(spec, facts, where, options), verdict, gradients


def hold_all(mesh: Mesh) -> list[Any]:
    return [hold(mesh, *case) for case in CASES]


@pytest.fixture(scope="module")
def seen(pools: Any) -> list[list[Any]]:
    return pools(2).run(hold_all)


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda i: f"{CASES[i][0]}-{CASES[i][1]}-{CASES[i][2]}")
def test_what_a_rank_holds_is_planned(seen: list[list[Any]], number: int) -> None:
    ranks = [rank[number] for rank in seen]
    sizes = {kind: max(rank[0].get(kind, 0) for rank in ranks) for kind in ranks[0][0]}
    plan: MemoryPlan = ranks[0][1]
    for kind, planned in (
        ("parameters", plan.parameter_bytes),
        ("gradients", plan.gradient_bytes),
        ("optimizer", plan.optimizer_bytes),
        ("gathered", plan.gathered_bytes),
    ):
        assert sizes[kind] == pytest.approx(planned, rel=STATES), kind
    assert plan.activations is not None
    assert sizes["activations"] == pytest.approx(sum(plan.activations.values()), rel=ACTIVATIONS)


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda i: f"{CASES[i][0]}-{CASES[i][1]}-{CASES[i][2]}")
def test_recomputation_changes_neither_collectives_nor_gradients(seen: list[list[Any]], number: int) -> None:
    for rank in seen:
        _, _, verdict, gradients = rank[number]
        assert verdict.observed == verdict.expected
        assert torch.allclose(gradients, rank[0][3], rtol=1e-4, atol=1e-6)


def hold_stages(mesh: Mesh, variant: dict[str, Any], mode: Any) -> tuple[dict[str, int], MemoryPlan, torch.Tensor]:
    mesh = mesh.shaped({"pp": 2})
    spec = STRATEGIES.load("pipeline")
    options = spec.options(micro_batches=4, **variant)
    where = setting(2, mesh.shape, optimizer="adam", micro_batch=8, activation_checkpointing=mode)
    task, facts = built("gpt", GPT, NEEDS, "float32")
    assert spec.requires(facts, where, options) is None
    blocks = [task.module.get_submodule(path) for path in facts.blocks]
    recomputed = None if mode == "none" else recompute(blocks, mode)
    session = IMPLEMENTATIONS.load("pipeline")(task.module, mesh, options, facts)
    optimizer = session.optimizer(torch.optim.Adam, lr=1e-3)
    x, _ = batch(NEEDS, 8)

    def step() -> None:
        assert session.scheduled is not None
        session.scheduled(x, x, task.loss_sum, 1 / 8, nullcontext, lambda _: None)
        session.finish()
        optimizer.step()

    step()
    gradients = torch.cat([g.flatten() for _, g in sorted(session.full_gradients().items())])
    session.zero_grad()
    account = TensorAccount(task.module, session.parameters, optimizer, recomputed=recomputed)
    with account.step():
        step()
    session.close()
    return account.sizes, memory_plan(spec, facts, where, options), gradients


@pytest.mark.parametrize(
    ("variant", "mode"),
    [
        ({"schedule": "gpipe"}, "none"),
        ({"schedule": "1f1b"}, "none"),
        ({"split": [1, 2]}, "none"),
        ({"schedule": "gpipe"}, "full"),
        ({"schedule": "1f1b"}, "selective"),
    ],
    ids=str,
)
def test_what_the_ranks_of_a_pipeline_hold_is_planned(pools: Any, variant: dict[str, Any], mode: str) -> None:
    ranks = pools(2).run(hold_stages, variant, mode)
    if mode != "none":
        for rank, plain in zip(ranks, pools(2).run(hold_stages, variant, "none"), strict=True):
            assert torch.allclose(rank[2], plain[2], rtol=1e-4, atol=1e-6)
    plan: MemoryPlan = ranks[0][1]
    sizes = {kind: max(rank[0][kind] for rank in ranks) for kind in ranks[0][0]}
    planned = {
        "parameters": plan.parameter_bytes,
        "gradients": plan.gradient_bytes,
        "optimizer": plan.optimizer_bytes,
    }
    assert {kind: sizes[kind] for kind in planned} == pytest.approx(planned, rel=STATES)
    assert plan.activations is not None
    assert sizes["activations"] == pytest.approx(sum(plan.activations.values()), rel=ACTIVATIONS)
