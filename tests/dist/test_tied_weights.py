"""A head that uses the token table: one parameter with two uses has one exact gradient, and travels once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests.dist.models import EXACT, assert_as_planned, batch, built, difference, gradients, setting

from stepscope.rank.mesh import Mesh
from stepscope.rank.plancheck import check, observe
from stepscope.rank.strategies import REGISTRY as IMPLEMENTATIONS
from stepscope.records.plan import InputNeeds, Setting
from stepscope.records.samples import PlanCheck
from stepscope.strategies import REGISTRY as STRATEGIES

MODEL = {"d_model": 12, "n_heads": 6, "num_layers": 2, "max_seq_len": 6, "vocab_size": 36, "tied": True}
NEEDS = InputNeeds(kind="lm", seq_len=6, vocab_size=36)
SAMPLES, ACCUMULATION = 3, 2


def planned(shape: dict[str, int], world_size: int) -> Setting:
    return setting(world_size, shape, accumulation=ACCUMULATION, micro_batch=SAMPLES)


@dataclass
class Seen:
    errors: list[float]
    checks: list[PlanCheck]


def train(mesh: Mesh, key: str, variant: dict[str, Any], shape: dict[str, int]) -> Seen:
    mesh = mesh.shaped(shape)
    (task, facts), (plain, _) = (built("gpt", MODEL, NEEDS) for _ in range(2))
    spec = STRATEGIES.load(key)
    options = spec.options(**variant)
    session = IMPLEMENTATIONS.load(key)(task.module, mesh, options, facts)
    optimizer = session.optimizer(torch.optim.SGD, lr=0.1)
    seen = Seen([], [])
    total = SAMPLES * ACCUMULATION * mesh.data_size
    for number in range(spec.min_warmup_steps(options) + 1):
        plain.module.load_state_dict(session.full_parameters(), strict=False)
        plain.module.zero_grad()
        for seed in range(ACCUMULATION * mesh.data_size):
            x, y = batch(NEEDS, SAMPLES, seed)
            (plain.loss_sum(plain.module(x), y) / total).backward()

        def step() -> None:
            for micro in range(ACCUMULATION):
                x, y = batch(NEEDS, SAMPLES, micro * mesh.data_size + mesh.data_rank)
                with session.micro_step(last=micro == ACCUMULATION - 1):
                    loss = task.loss_sum(session.trainable(x), y) / total * session.loss_factor
                    loss.backward()
            session.finish()

        observed = observe(step, mesh)
        if number >= spec.min_warmup_steps(options):
            plan = spec.comm_plan(facts, planned(shape, mesh.world_size), options)
            seen.checks.append(check([op for op in plan if op.phase != "optimizer"], observed))
        found = session.full_gradients()
        expected = gradients(plain.module)
        assert found.keys() == expected.keys()
        assert "head.weight" not in found
        seen.errors.append(difference(found, expected))
        optimizer.step()
        session.zero_grad()
    session.close()
    return seen


CASES = [
    *((key, {}, {}) for key in ("naive", "interleaved", "bucketed", "ddp", "zero1", "fsdp2")),
    ("fsdp2", {"reshard_after_forward": False, "blocks_per_unit": 0}, {}),
    ("tensor_parallel", {}, {"tp": 2}),
    ("tensor_parallel", {"sequence_parallel": True, "loss_parallel": True}, {"tp": 3}),
    pytest.param("tensor_parallel", {}, {"dp": 2, "tp": 2}, marks=pytest.mark.long),
    pytest.param("hsdp", {}, {"dp_replicate": 2, "dp_shard": 2}, marks=pytest.mark.long),
]


@pytest.mark.parametrize(("key", "variant", "shape"), CASES, ids=str)
def test_a_tied_weight_has_one_gradient_and_travels_once(
    pools: Any, key: str, variant: dict[str, Any], shape: dict[str, int]
) -> None:
    for rank in pools(math.prod(shape.values()) if shape else 2).run(train, key, variant, shape):
        for verdict in rank.checks:
            assert_as_planned(verdict)
        assert rank.checks
        assert max(rank.errors) <= EXACT, rank.errors


def test_a_pipeline_refuses_it_with_the_reason() -> None:
    _, facts = built("gpt", MODEL, NEEDS)
    spec = STRATEGIES.load("pipeline")
    reason = spec.requires(facts, planned({"pp": 2}, 2), spec.options(micro_batches=3))
    assert reason is not None
    assert "tokens.weight is tied" in reason
