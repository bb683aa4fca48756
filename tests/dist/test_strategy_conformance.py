"""Every strategy keeps its spec: exact gradients, and the very collectives that its plan lists.

Strategies and their option sets are found through the registry, so a new one is tested by being there.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stepscope.core.errors import Unavailable
from stepscope.rank.mesh import Mesh
from stepscope.rank.plancheck import ObservedOp, check, observe
from stepscope.rank.strategies import REGISTRY as IMPLEMENTATIONS
from stepscope.rank.strategies import Session
from stepscope.records.plan import CommOp, ModelFacts, ParameterFact, Setting
from stepscope.strategies import REGISTRY as SPECS

EXACT = 1e-12
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
        self.first = nn.Linear(FEATURES, 24)
        self.shared = nn.Linear(24, 24, bias=False)
        self.norm = nn.LayerNorm(24)
        self.last = nn.Linear(24, CLASSES)
        self.register_buffer("constant", torch.ones(24))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x)) * self.constant
        x = self.norm(self.shared(torch.tanh(self.shared(x))))
        return self.last(x)


def model() -> Model:
    torch.manual_seed(7)
    return Model().double()


def facts_of(module: nn.Module) -> ModelFacts:
    """Facts by looking: parameters as registered, the order of readiness from one backward pass."""
    names = [name for name, _ in module.named_parameters()]
    order: list[int] = []
    hooks = [
        p.register_post_accumulate_grad_hook(lambda _, i=i: order.append(i))
        for i, p in enumerate(module.parameters())
    ]
    module(torch.ones(2, FEATURES, dtype=torch.float64)).sum().backward()
    for hook in hooks:
        hook.remove()
    for parameter in module.parameters():
        parameter.grad = None
    parameters = tuple(
        ParameterFact(
            name=name, numel=p.numel(), dtype=str(p.dtype).removeprefix("torch."), shape=tuple(p.shape)
        )
        for name, p in zip(names, module.parameters(), strict=True)
    )
    return ModelFacts(parameters=parameters, ready_order=tuple(order), forward_flops_per_sample=0)


def setting(world_size: int, accumulation: int) -> Setting:
    return Setting(
        device="cpu",
        backend="gloo",
        world_size=world_size,
        precision="fp32",
        optimizer="sgd",
        accumulation=accumulation,
    )


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


def gradient(module: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])


def reference_gradient(module: nn.Module, window: list[MicroStep]) -> Tensor:
    """One process, all samples at once."""
    plain = copy.deepcopy(module)
    for parameter in plain.parameters():
        parameter.grad = None
    x, y = torch.cat([m.x for m in window]), torch.cat([m.y for m in window])
    (loss_sum(plain(x), y) / len(x)).backward()
    return gradient(plain)


def backward_of_window(session: Session, mesh: Mesh, window: list[MicroStep]) -> None:
    samples = sum(len(m.x) for m in window)
    for index, micro in enumerate(window):
        x, y = micro.of(mesh.rank)
        with session.micro_step(last=index == len(window) - 1):
            loss = loss_sum(session.trainable(x), y) / samples * session.loss_factor
            loss.backward()


@dataclass
class Seen:
    """What one rank saw. plans: (phase, observed) of every steady-state step."""

    errors: list[float]
    plans: list[tuple[str, tuple[ObservedOp, ...] | Unavailable]]
    parameters: Tensor
    hooks_left: int
    after_close: tuple[ObservedOp, ...] | Unavailable
    plain_again: bool


def train(mesh: Mesh, key: str, variant: dict[str, Any], accumulation: int) -> Seen:
    spec = SPECS.load(key)
    options = spec.options(**variant)
    module = model()
    session = IMPLEMENTATIONS.load(key)(module, mesh, options)
    errors, plans = [], []
    for step, window in enumerate(windows(mesh.world_size, accumulation)):
        expected = reference_gradient(module, window)

        def backward(window: list[MicroStep] = window) -> None:
            backward_of_window(session, mesh, window)

        if step < spec.min_warmup_steps(options):
            backward()
            session.finish()
        else:
            plans.append(("backward", observe(backward)))
            plans.append(("after_backward", observe(session.finish)))
        errors.append(float((gradient(module) - expected).norm() / expected.norm()))
        with torch.no_grad():
            for parameter in module.parameters():
                parameter -= 0.1 * parameter.grad
        session.zero_grad()
    session.close()
    hooks_left = sum(
        len(p._post_accumulate_grad_hooks or {}) + len(p._backward_hooks or {}) for p in module.parameters()
    )
    no_gradient = all(p.grad is None for p in module.parameters())
    x = torch.randn(3, FEATURES, dtype=torch.float64)
    after_close = observe(lambda: module(x).sum().backward())
    parameters = torch.cat([p.detach().flatten() for p in module.parameters()])
    return Seen(errors, plans, parameters, hooks_left, after_close, no_gradient)


def cases() -> Iterator[Any]:
    facts = facts_of(model())
    for key in SPECS.names():
        spec = SPECS.load(key)
        for variant in spec.variants:
            for world_size in SHARDS if spec.collective else (1,):
                for accumulation in (1, 3):
                    options = spec.options(**variant)
                    if spec.requires(facts, setting(world_size, accumulation), options) is None:
                        text = ",".join(f"{k}={v}" for k, v in variant.items()) or "default"
                        name = f"{key}({text})-{world_size}-ranks-accumulate-{accumulation}"
                        marks = [pytest.mark.long] if world_size in LONG else []
                        yield pytest.param(key, variant, world_size, accumulation, id=name, marks=marks)


@pytest.mark.parametrize(("key", "variant", "world_size", "accumulation"), list(cases()))
def test_gradients_and_collectives_are_as_planned(
    pools: Any, key: str, variant: dict[str, Any], world_size: int, accumulation: int
) -> None:
    spec = SPECS.load(key)
    options = spec.options(**variant)
    plan = spec.comm_plan(facts_of(model()), setting(world_size, accumulation), options)
    seen = pools(world_size).run(train, key, dict(variant), accumulation)

    tolerance = spec.tolerance(options)
    steps = len(seen[0].errors)
    if tolerance >= 1:  # carries its error: the spec holds for the first lossy step
        steps = spec.min_warmup_steps(options)
    for (
        rank
    ) in seen:  # first of all: a missing collective shows in the gradients as well, but without its name
        assert rank.plans, "no steady-state step was observed"
        for phase, observed in rank.plans:
            assert_as_planned([op for op in plan if op.phase == phase], observed)
    for number, rank in enumerate(seen):
        by_step = ", ".join(f"{error:.1e}" for error in rank.errors)
        assert max(rank.errors[:steps]) <= max(EXACT, tolerance), (
            f"rank {number}: gradients are not the single-process ones; relative error step by step: {by_step}"
        )
        assert torch.equal(rank.parameters, seen[0].parameters), "replicas differ"
        assert rank.hooks_left == 0, f"close() left hooks behind: {rank.hooks_left}"
        assert rank.after_close == (), "a closed session still communicates"
        assert rank.plain_again
    if tolerance > 0 and world_size > 1:
        assert max(e for rank in seen for e in rank.errors) > EXACT, "declared lossy, but nothing was lost"


def assert_as_planned(plan: list[CommOp], observed: tuple[ObservedOp, ...] | Unavailable) -> None:
    verdict = check(plan, observed)
    assert verdict.unavailable is None
    assert verdict.observed == verdict.expected
    assert verdict.matches
