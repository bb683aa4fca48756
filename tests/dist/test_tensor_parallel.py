"""Tensor parallelism of the real workloads: gradients of one process, and the very collectives of the plan."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests.dist.models import EXACT, assert_as_planned, batch, built, difference, gradients, setting
from torch import Tensor
from torch.distributed.tensor import DTensor

from stepscope.rank.mesh import Mesh
from stepscope.rank.plancheck import check, observe
from stepscope.rank.precision import Numerics
from stepscope.rank.strategies import REGISTRY as IMPLEMENTATIONS
from stepscope.rank.workloads import Task
from stepscope.records.plan import InputNeeds, ModelFacts, Setting
from stepscope.records.precision import parameter_dtype
from stepscope.records.samples import PlanCheck
from stepscope.strategies.tensor_parallel import STRATEGY

TEXT = {"d_model": 24, "n_heads": 6, "num_layers": 2, "dim_feedforward": 48, "max_seq_len": 6, "vocab_size": 54}
MODELS: dict[str, tuple[dict[str, Any], InputNeeds]] = {
    "gpt": (TEXT, InputNeeds(kind="lm", seq_len=6, vocab_size=54)),
    "text_classifier": (TEXT, InputNeeds(kind="tokens", seq_len=6, vocab_size=54, num_classes=3)),
    "mlp": ({"layers": [24, 12, 18]}, InputNeeds(kind="features", num_features=10, num_classes=6)),
    "deep_mlp": ({"depth": 4, "width": 12}, InputNeeds(kind="features", num_features=12, num_classes=12)),
}
CLIP = 0.01
"""Below the norm of the models' gradients."""
EVEN = 3
"""Samples of a micro-step in a full window."""


def uneven(micro_step: int, shard: int) -> int:
    """The same in the tail of an epoch: the second shard has nothing at first."""
    return 2 + micro_step - 2 * shard


def made(workload: str, dtype: str = "float64") -> tuple[Task, ModelFacts, InputNeeds]:
    return (*built(workload, *MODELS[workload], dtype), MODELS[workload][1])


def adamw(world_size: int, shape: dict[str, int], accumulation: int = 1, **options: Any) -> Setting:
    return setting(world_size, shape, optimizer="adamw", accumulation=accumulation, micro_batch=EVEN, **options)


def local_bytes(tensors: Iterable[Tensor]) -> int:
    """What this rank holds of them."""
    local = [t.to_local() if isinstance(t, DTensor) else t for t in tensors]
    return sum(t.numel() * t.element_size() for t in local)


@dataclass
class Seen:
    errors: list[float]
    check: PlanCheck
    updates: object
    held: tuple[int, int]
    parameters: Tensor


def train(mesh: Mesh, workload: str, shape: dict[str, int], variant: dict[str, Any], accumulation: int) -> Seen:
    mesh = mesh.shaped(shape)
    task, facts, needs = made(workload)
    plain, _, _ = made(workload)
    options = STRATEGY.options(**variant)
    session = IMPLEMENTATIONS.load("tensor_parallel")(task.module, mesh, options, facts)
    optimizer = session.optimizer(torch.optim.AdamW, lr=0.1)
    errors: list[float] = []
    for even in (True, False):
        shards = [
            [batch(needs, EVEN if even else uneven(i, d), 10 * i + d) for d in range(mesh.data_size)]
            for i in range(accumulation)
        ]
        total = sum(len(x) for micro in shards for x, _ in micro)
        plain.module.load_state_dict(session.full_parameters(), strict=False)
        plain.module.zero_grad()
        for x, y in (shard for micro in shards for shard in micro):
            (plain.loss_sum(plain.module(x), y) / total).backward()

        def window(shards: list[list[tuple[Tensor, Tensor]]] = shards, total: int = total) -> None:
            for index, micro in enumerate(shards):
                x, y = micro[mesh.data_rank]
                with session.micro_step(last=index == len(shards) - 1):
                    loss = task.loss_sum(task.forward(session.trainable, x), y) / total * session.loss_factor
                    loss.backward()
            session.finish()
            session.clip(CLIP)

        torch.nn.utils.clip_grad_norm_(plain.module.parameters(), CLIP)
        observed = observe(window, mesh)
        if even:
            plan = STRATEGY.comm_plan(facts, adamw(mesh.world_size, shape, accumulation, clip=True), options)
            checked = check(plan, observed)
        found = session.full_gradients()
        expected = gradients(plain.module)
        assert found.keys() == expected.keys()
        errors.append(difference(found, expected))
        updates = observe(optimizer.step, mesh)
        session.zero_grad()
    flat = torch.cat([p.flatten() for p in session.full_parameters().values()])
    session.close()
    state = [t for s in optimizer.state.values() for t in s.values() if t.dim()]
    return Seen(errors, checked, updates, (local_bytes(session.parameters), local_bytes(state)), flat)


SEQUENCE, LOSS = {"sequence_parallel": True}, {"loss_parallel": True}
CASES = [
    ("gpt", {"tp": 2}, {}, 3),
    ("gpt", {"tp": 2}, SEQUENCE, 1),
    ("gpt", {"tp": 2}, LOSS, 1),
    ("gpt", {"tp": 3}, SEQUENCE | LOSS, 3),
    ("text_classifier", {"tp": 2}, {}, 1),
    ("mlp", {"tp": 3}, {}, 3),
    ("deep_mlp", {"tp": 2}, {}, 1),
    *(
        pytest.param(workload, {"dp": 2, "tp": 2}, variant, 3, marks=pytest.mark.long)
        for workload, variant in (("gpt", {}), ("gpt", SEQUENCE), ("gpt", SEQUENCE | LOSS), ("mlp", {}))
    ),
]


@pytest.mark.parametrize(("workload", "shape", "variant", "accumulation"), CASES, ids=str)
def test_gradients_and_collectives_are_as_planned(
    pools: Any, workload: str, shape: dict[str, int], variant: dict[str, Any], accumulation: int
) -> None:
    world = math.prod(shape.values())
    _, facts, _ = made(workload)
    memory = STRATEGY.memory_plan(facts, adamw(world, shape), STRATEGY.options(**variant))
    seen = pools(world).run(train, workload, shape, variant, accumulation)
    for rank in seen:
        assert_as_planned(rank.check)
        assert max(rank.errors) <= EXACT
        assert rank.updates == (), "the optimizer communicates"
        assert torch.equal(rank.parameters, seen[0].parameters)
    assert max(rank.held for rank in seen) == (memory.parameter_bytes, memory.optimizer_bytes)


def collectives(mesh: Mesh, shape: dict[str, int], variant: dict[str, Any], precision: str) -> PlanCheck:
    mesh = mesh.shaped(shape)
    numerics = Numerics(precision, mesh.device)
    task, facts, needs = made("gpt", parameter_dtype(precision))
    options = STRATEGY.options(**variant)
    numerics.prepare(task.module)
    session = IMPLEMENTATIONS.load("tensor_parallel")(task.module, mesh, options, facts)

    def step() -> None:
        x, y = batch(needs, EVEN, 1)
        with session.micro_step(last=True):
            with numerics.autocast():
                loss = task.loss_sum(session.trainable(x), y)
            numerics.backward(loss)
        session.finish()

    observed = observe(step, mesh)
    session.close()
    numerics.close()
    where = adamw(mesh.world_size, shape, precision=precision)
    return check(STRATEGY.comm_plan(facts, where, options), observed)


@pytest.mark.parametrize("precision", ["bf16", "amp_bf16"])
@pytest.mark.parametrize("variant", [{}, SEQUENCE | LOSS], ids=str)
def test_what_travels_in_which_precision_is_planned(pools: Any, variant: dict[str, Any], precision: str) -> None:
    for verdict in pools(2).run(collectives, {"tp": 2}, variant, precision):
        assert_as_planned(verdict)
