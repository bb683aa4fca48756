"""Every strategy keeps its spec: exact gradients, and the very collectives that its plan lists.

Strategies and their option sets are found through the registry, so a new one is tested by being there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests.dist.models import EXACT, assert_as_planned, difference, gradients, setting
from torch import Tensor, nn

from stepscope.core.errors import Unavailable
from stepscope.rank.mesh import Mesh
from stepscope.rank.plancheck import ObservedOp, check, observe
from stepscope.rank.strategies import REGISTRY as IMPLEMENTATIONS
from stepscope.rank.strategies import Session
from stepscope.records.mesh import DIMENSIONS, canonical
from stepscope.records.mesh import text as shape_text
from stepscope.records.plan import ModelFacts, ParameterFact
from stepscope.strategies import REGISTRY as SPECS

FEATURES, CLASSES = 20, 5

# Samples of each rank in each micro-step: uneven, and with every rank empty at some time.
SHARDS = {
    1: [(8,), (3,), (2,)],
    2: [(5, 3), (0, 4), (2, 0)],
    3: [(4, 0, 3), (1, 2, 0), (0, 5, 2)],
    4: [(4, 0, 3, 1), (0, 2, 1, 0), (3, 5, 0, 2)],
}
LONG = (4,)


class Model(nn.Module):
    """A few layers, one of them used twice, matrices large enough for low-rank compression."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(FEATURES, 24), nn.Linear(24, 23), nn.Linear(23, CLASSES)])
        self.shared = nn.Linear(24, 24, bias=False)
        self.norm = nn.LayerNorm(24)
        self.register_buffer("constant", torch.ones(24))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.layers[0](x))
        x = x * self.constant.to(x.dtype)
        x = self.norm(self.shared(torch.tanh(self.shared(x))))
        return self.layers[2](torch.tanh(self.layers[1](x)))


def model() -> Model:
    torch.manual_seed(7)
    return Model().double()


def facts_of(module: nn.Module) -> ModelFacts:
    """Facts by looking: parameters as registered, the order of readiness from one backward pass."""
    names = [name for name, _ in module.named_parameters()]
    order: list[int] = []
    hooks = [
        p.register_post_accumulate_grad_hook(lambda _, i=i: order.append(i)) for i, p in enumerate(module.parameters())
    ]
    module(torch.ones(2, FEATURES, dtype=torch.float64)).sum().backward()
    for hook in hooks:
        hook.remove()
    for parameter in module.parameters():
        parameter.grad = None
    parameters = tuple(
        ParameterFact(name=name, numel=p.numel(), dtype=str(p.dtype).removeprefix("torch."), shape=tuple(p.shape))
        for name, p in zip(names, module.parameters(), strict=True)
    )
    return ModelFacts(parameters=parameters, ready_order=tuple(order), forward_flops_per_sample=0)


@dataclass
class MicroStep:
    """The data of all ranks in one micro-step; ``of(rank)`` is one rank's shard."""

    x: Tensor
    y: Tensor
    sizes: tuple[int, ...]

    def of(self, rank: int) -> tuple[Tensor, Tensor]:
        start = sum(self.sizes[:rank])
        part = slice(start, start + self.sizes[rank])
        return self.x[part], self.y[part]


def windows(world_size: int, accumulation: int) -> Iterator[list[MicroStep]]:
    """Optimizer steps with full windows and tails of a single micro-step in between."""
    generator = torch.Generator().manual_seed(3)
    shards = SHARDS[world_size]
    full, tail = shards[:accumulation], shards[1:2]
    for sizes_of_window in (full, tail, full, shards[2:], tail, full):
        yield [
            MicroStep(
                torch.randn(sum(sizes), FEATURES, generator=generator, dtype=torch.float64),
                torch.randint(CLASSES, (sum(sizes),), generator=generator),
                sizes,
            )
            for sizes in sizes_of_window
        ]


def loss_sum(output: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, y, reduction="sum")


def reference_gradients(parameters: dict[str, Tensor], window: list[MicroStep]) -> dict[str, Tensor]:
    """One process, all samples at once."""
    plain = model()
    plain.load_state_dict(parameters, strict=False)
    x, y = torch.cat([m.x for m in window]), torch.cat([m.y for m in window])
    (loss_sum(plain(x), y) / len(x)).backward()
    return gradients(plain)


def backward_of_window(session: Session, mesh: Mesh, window: list[MicroStep]) -> None:
    samples = sum(len(m.x) for m in window)
    for index, micro in enumerate(window):
        x, y = micro.of(mesh.data_rank)
        with session.micro_step(last=index == len(window) - 1):
            loss = loss_sum(session.trainable(x), y) / samples * session.loss_factor
            loss.backward()


@dataclass
class Seen:
    """What one rank saw. plans: (micro-steps, phases, observed) of every steady-state step."""

    errors: list[float]
    plans: list[tuple[int, tuple[str, ...], tuple[ObservedOp, ...] | Unavailable]]
    part: int
    parameters: Tensor
    hooks_left: int
    after_close: tuple[ObservedOp, ...] | Unavailable
    plain_again: bool


def train(mesh: Mesh, key: str, variant: dict[str, Any], accumulation: int, shape: dict[str, int]) -> Seen:
    spec = SPECS.load(key)
    options = spec.options(**variant)
    module, mesh = model(), mesh.shaped(shape)
    session = IMPLEMENTATIONS.load(key)(module, mesh, options, facts_of(model()))
    optimizer = session.optimizer(torch.optim.SGD, lr=0.1)
    errors, plans = [], []
    parameters = session.full_parameters()
    for step, window in enumerate(windows(mesh.data_size, accumulation)):
        expected = reference_gradients(parameters, window)

        def backward(window: list[MicroStep] = window) -> None:
            backward_of_window(session, mesh, window)

        if step < spec.min_warmup_steps(options):
            backward()
            session.finish()
        else:
            plans.append((len(window), ("forward", "backward"), observe(backward, mesh)))
            plans.append((len(window), ("after_backward",), observe(session.finish, mesh)))
        errors.append(difference(session.full_gradients(), expected))
        plans.append((len(window), ("optimizer",), observe(optimizer.step, mesh)))
        session.zero_grad()
        parameters = session.full_parameters()
    session.close()
    hooks_left = sum(
        len(p._post_accumulate_grad_hooks or {}) + len(p._backward_hooks or {}) for p in module.parameters()
    )
    no_gradient = all(p.grad is None for p in module.parameters())
    x = torch.randn(3, FEATURES, dtype=torch.float64)
    after_close = observe(lambda: module(x).sum().backward()) if not spec.sharded else ()
    flat = torch.cat([p.flatten() for p in parameters.values()])
    return Seen(errors, plans, session.model_part, flat, hooks_left, after_close, no_gradient)


def meshes(dimensions: frozenset[str], world_size: int) -> Iterator[dict[str, int]]:
    """All ranks along one of the dimensions, and 2 x 2 of any two."""
    for name in DIMENSIONS:
        if name in dimensions:
            yield canonical({name: world_size})
    if world_size == 4:
        yield from (canonical({a: 2, b: 2}) for a, b in itertools.combinations(DIMENSIONS, 2) if {a, b} <= dimensions)


def cases() -> Iterator[Any]:
    facts = facts_of(model())
    for key in SPECS.names():
        spec = SPECS.load(key)
        for variant in spec.variants:
            for world_size in SHARDS if spec.collective else (1,):
                for mesh, accumulation in itertools.product(meshes(spec.dimensions, world_size), (1, 3)):
                    options = spec.options(**variant)
                    if spec.requires(facts, setting(world_size, mesh, accumulation=accumulation), options) is None:
                        text = ",".join(f"{k}={v}" for k, v in variant.items()) or "default"
                        ranks = shape_text(mesh) or f"{world_size}-ranks"
                        name = f"{key}({text})-{ranks}-accumulate-{accumulation}"
                        # Windows of three micro-steps end with windows of one.
                        other = variant != spec.variants[0]
                        rare = (accumulation == 1 and (world_size != 2 or other)) or (world_size == 3 and other)
                        marks = [pytest.mark.long] if world_size in LONG or rare else []
                        yield pytest.param(key, variant, world_size, mesh, accumulation, id=name, marks=marks)


@pytest.mark.parametrize(("key", "variant", "world_size", "mesh", "accumulation"), list(cases()))
def test_gradients_and_collectives_are_as_planned(
    pools: Any, key: str, variant: dict[str, Any], world_size: int, mesh: dict[str, int], accumulation: int
) -> None:
    spec = SPECS.load(key)
    options = spec.options(**variant)
    facts = facts_of(model())
    seen = pools(world_size).run(train, key, dict(variant), accumulation, mesh)

    tolerance = spec.tolerance(options)
    steps = len(seen[0].errors)
    if tolerance >= 1:  # carries its error: the spec holds for the first lossy step
        steps = spec.min_warmup_steps(options)
    for number, rank in enumerate(seen):
        # First of all: a missing collective shows in the gradients as well, but without its name.
        assert rank.plans, "no steady-state step was observed"
        for micro_steps, phases, observed in rank.plans:
            where = setting(world_size, mesh, accumulation=micro_steps)
            plan = (
                spec.comm_plan(facts, where, options)
                if spec.plan_of_rank is None
                else spec.plan_of_rank(facts, where, options, number)
            )
            assert_as_planned(check([op for op in plan if op.phase in phases], observed))
    first = {rank.part: rank for rank in reversed(seen)}
    for number, rank in enumerate(seen):
        by_step = ", ".join(f"{error:.1e}" for error in rank.errors)
        assert max(rank.errors[:steps]) <= max(EXACT, tolerance), (
            f"rank {number}: gradients are not the single-process ones; relative error step by step: {by_step}"
        )
        assert torch.equal(rank.parameters, first[rank.part].parameters), "replicas differ"
        assert rank.plain_again
        if spec.sharded:
            continue
        assert rank.hooks_left == 0, f"close() left hooks behind: {rank.hooks_left}"
        assert rank.after_close == (), "a closed session still communicates"
    if tolerance > 0 and world_size > 1:
        assert max(e for rank in seen for e in rank.errors) > EXACT, "declared lossy, but nothing was lost"
