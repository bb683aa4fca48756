"""Pipelines: gradients of the single process, and the messages and reductions that the plan lists.

The strategies' common test has a model that cannot be cut into stages; here are two of the workloads'.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests.dist.models import EXACT, assert_as_planned, batch, built, difference, gradients, setting
from torch import Tensor, nn

from stepscope.rank.mesh import Mesh
from stepscope.rank.plancheck import check, observe
from stepscope.rank.strategies.pipeline import PipelineSession
from stepscope.records.plan import InputNeeds
from stepscope.records.samples import PlanCheck
from stepscope.strategies.pipeline import STRATEGY, PipelineOptions

CLIP = 0.01  # below the norm of the models' gradients
MICRO_BATCH = 8  # of a data shard; the options cut it into 4
MODELS: dict[str, tuple[dict[str, Any], InputNeeds]] = {
    "mlp": ({"layers": [12] * 5}, InputNeeds(kind="features", num_features=10, num_classes=4)),
    "gpt": (
        {"d_model": 8, "n_heads": 2, "num_layers": 5, "vocab_size": 11, "max_seq_len": 6},
        InputNeeds(kind="lm", seq_len=6, vocab_size=11),
    ),
}
# Samples of each data shard in each micro-step: full, one that 4 micro-batches do not divide, one without any.
SIZES = {1: [(8,), (5,), (8,)], 2: [(8, 8), (3, 7), (8, 0)]}


def windows(workload: str, data_shards: int, accumulation: int) -> Iterator[list[list[tuple[Tensor, Tensor]]]]:
    """Optimizer steps: micro-steps of every data shard's (x, y); a short one is the last."""
    seeds = itertools.count()
    full, *tails = SIZES[data_shards]
    for sizes in ([full] * accumulation, [full] * (accumulation - 1) + [tails[0]], [full, tails[1]][-accumulation:]):
        yield [[batch(MODELS[workload][1], size, next(seeds)) for size in shards] for shards in sizes]


@dataclass
class Seen:
    errors: list[float]
    losses: list[float]
    checks: list[PlanCheck]
    part: int
    parameters: dict[str, Tensor]
    kinds: set[str]


def train(mesh: Mesh, workload: str, variant: dict[str, Any], shape: dict[str, int], accumulation: int) -> Seen:
    mesh = mesh.shaped(shape)
    (made, facts), (reference, _) = (built(workload, *MODELS[workload]) for _ in range(2))
    session = PipelineSession(made.module, mesh, PipelineOptions(**variant))
    optimizer = session.optimizer(torch.optim.SGD, lr=0.1)
    whole = torch.optim.SGD(reference.module.parameters(), lr=0.1)
    where = setting(mesh.world_size, shape, accumulation=accumulation, micro_batch=MICRO_BATCH, clip=True)
    assert STRATEGY.requires(facts, where, PipelineOptions(**variant)) is None
    plan = STRATEGY.plan_of_rank(facts, where, PipelineOptions(**variant), mesh.rank)  # type: ignore[misc]
    seen = Seen([], [], [], session.model_part, {}, set())
    for window in windows(workload, mesh.data_size, accumulation):
        samples = sum(len(x) for shards in window for x, _ in shards)
        expected = 0.0
        for shards in window:
            for x, y in shards:
                loss = made.loss_sum(reference.module(x), y)
                (loss / samples).backward()
                expected += float(loss.detach())
        found = torch.zeros((), dtype=torch.float64)

        def step(
            window: list[list[tuple[Tensor, Tensor]]] = window, samples: int = samples, found: Tensor = found
        ) -> None:
            for shards in window:
                x, y = shards[mesh.data_rank]
                found += session.scheduled(x, y, made.loss_sum, 1 / samples, nullcontext, lambda _: None)
            session.finish()
            session.clip(CLIP)

        torch.nn.utils.clip_grad_norm_(reference.module.parameters(), CLIP)
        observed = observe(step, mesh)
        full = all(len(x) == MICRO_BATCH for shards in window for x, _ in shards)
        if full and len(window) == accumulation:
            seen.checks.append(check(plan, observed, messages=session.messages))
        ours = session.full_gradients()
        assert ours.keys() == session.full_parameters().keys()
        seen.errors.append(difference(ours, gradients(reference.module)))
        seen.kinds |= {span.kind for span in session.watch.spans}
        if session.counts and mesh.data_size == 1:
            seen.losses.append(abs(float(found) - expected) / expected)
        for each in (optimizer, whole):
            each.step()
        session.zero_grad()
        whole.zero_grad()
    seen.parameters = {name: p.clone() for name, p in session.full_parameters().items()}
    session.close()
    return seen


def cases() -> Iterator[Any]:
    for number, variant in enumerate(STRATEGY.variants):
        for workload, accumulation in itertools.product(MODELS, (1, 3)):
            name = ",".join(f"{k}={v}" for k, v in variant.items()) or "default"
            for shape in ({"pp": 2}, {"pp": 2, "dp": 2}):
                cheap = shape == {"pp": 2} and (workload == "mlp") == (number % 2 == 0 or accumulation == 3)
                marks = [] if cheap else [pytest.mark.long]
                ranks = "x".join(f"{k}{v}" for k, v in shape.items())
                yield pytest.param(
                    workload, variant, shape, accumulation, id=f"{workload}-{name}-{ranks}-{accumulation}", marks=marks
                )


@pytest.mark.parametrize(("workload", "variant", "shape", "accumulation"), list(cases()))
def test_gradients_and_messages(
    pools: Any, workload: str, variant: dict[str, Any], shape: dict[str, int], accumulation: int
) -> None:
    options = PipelineOptions(**variant)
    world = shape["pp"] * shape.get("dp", 1)
    seen = pools(world).run(train, workload, dict(variant), shape, accumulation)
    for rank in seen:
        assert rank.checks
        for verdict in rank.checks:
            assert_as_planned(verdict)
        assert max(rank.errors) <= EXACT, rank.errors
        assert rank.kinds == (set("FIW") if options.schedule in ("zero_bubble", "zbv") else set("FB"))
    assert max([0.0, *(error for rank in seen for error in rank.losses)]) <= EXACT
    assert shape.keys() >= {"dp"} or sum(bool(rank.losses) for rank in seen) == 1, "one rank has the loss"
    parts: dict[int, dict[str, Tensor]] = {}
    for rank in seen:
        other = parts.setdefault(rank.part, rank.parameters)
        assert all(torch.equal(p, other[name]) for name, p in rank.parameters.items()), "replicas of a stage differ"
    names = [name for part in parts.values() for name in part]
    assert sorted(names) == sorted(
        name for name, _ in built(workload, *MODELS[workload])[0].module.named_parameters()
    ), "every one on one rank"


def test_the_pieces_of_a_model_are_those_of_its_facts() -> None:
    for workload in ("mlp", "gpt"):
        task, facts = built(workload, *MODELS[workload])
        module = task.module
        names = {id(p): name for name, p in module.named_parameters()}
        found = [[names[id(p)] for m in piece.modules for p in m.parameters()] for piece in module.pieces()]  # type: ignore[operator]
        assert found == [list(piece.parameters) for piece in facts.pieces]
        assert sum(p.forward_flops_per_sample for p in facts.pieces) == facts.forward_flops_per_sample
        x, _ = next(windows(workload, 1, 1))[0][0]
        part: Any = x
        for piece, fact in zip(module.pieces()[:-1], facts.pieces, strict=False):  # type: ignore[operator]
            part = piece.forward(part)
            assert part.numel() == len(x) * fact.output_numel
        part = module.pieces()[-1].forward(part)  # type: ignore[operator]
        assert torch.equal(part, nn.Module.__call__(module, x))
