"""What the strategies do together with precision, accumulation and overflow, on real ranks."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stepscope.rank.mesh import Mesh
from stepscope.rank.plancheck import observe
from stepscope.rank.precision import Numerics
from stepscope.rank.strategies import REGISTRY as IMPLEMENTATIONS
from stepscope.strategies import REGISTRY as SPECS

COLLECTIVE = ("naive", "interleaved", "bucketed", "ddp")


def small_model() -> nn.Module:
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))


def flat_parameters(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten().double() for p in module.parameters()])


def batch(mesh: Mesh, step: int, *, samples: int = 6) -> tuple[Tensor, Tensor]:
    """This rank's shard: each rank has one sample more than the one before."""
    generator = torch.Generator().manual_seed(1000 * step + mesh.rank)
    size = samples + mesh.rank
    return torch.randn(size, 16, generator=generator), torch.randint(4, (size,), generator=generator)


def train_steps(
    mesh: Mesh, key: str, precision: str, steps: int, overflow_at: int | None
) -> list[tuple[Tensor, float]]:
    """Parameters and loss scale after each step; in one step, rank 1 alone sees a sample that overflows float16."""
    spec = SPECS.load(key)
    numerics = Numerics(precision, mesh.device)
    module = numerics.prepare(small_model())
    session = IMPLEMENTATIONS.load(key)(module, mesh, spec.options())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    total = sum(6 + rank for rank in range(mesh.world_size))
    seen = []
    for step in range(steps):
        x, y = batch(mesh, step)
        if step == overflow_at and mesh.rank == 1:
            x[0] = 6e4
        x, y = numerics.inputs(x, y)
        with session.micro_step(last=True):
            with numerics.autocast():
                output = session.trainable(x)
                loss = nn.functional.cross_entropy(output.float(), y, reduction="sum")
            numerics.backward(loss / total * session.loss_factor)
        session.finish()
        numerics.step(optimizer, clip=lambda: session.clip(1.0))
        session.zero_grad()
        seen.append((flat_parameters(module), float(numerics._scaler.get_scale())))
    session.close()
    numerics.close()
    return seen


@pytest.mark.parametrize("precision", ["fp32", "amp_bf16", "amp_fp16", "bf16"])
@pytest.mark.parametrize("key", COLLECTIVE)
def test_replicas_stay_identical_in_every_precision(pools: Any, key: str, precision: str) -> None:
    ranks = pools(2).run(train_steps, key, precision, 5, None)
    start = flat_parameters(small_model())
    for step in range(5):
        assert torch.equal(ranks[0][step][0], ranks[1][step][0])
    assert not torch.equal(ranks[0][-1][0], start), "nothing was trained"


@pytest.mark.parametrize("key", COLLECTIVE)
def test_an_overflow_on_one_rank_makes_all_ranks_skip_the_step(pools: Any, key: str) -> None:
    bad = 3
    ranks = pools(2).run(train_steps, key, "amp_fp16", 6, bad)
    for seen in ranks:
        (before, scale_before), (after, scale_after) = seen[bad - 1], seen[bad]
        assert torch.equal(before, after), "a rank made the step that overflowed"
        assert scale_after == scale_before / 2
        assert not torch.equal(seen[bad + 1][0], after), "training did not go on"
        assert torch.isfinite(seen[-1][0]).all()
    assert torch.equal(ranks[0][-1][0], ranks[1][-1][0])
    assert ranks[0][-1][1] == ranks[1][-1][1]


def dtypes_that_travel(mesh: Mesh, precision: str, hook: str) -> set[str]:
    numerics = Numerics(precision, mesh.device)
    module = numerics.prepare(small_model())
    session = IMPLEMENTATIONS.load("ddp")(module, mesh, SPECS.load("ddp").options(hook=hook))

    def step() -> None:
        x, _ = numerics.inputs(*batch(mesh, 0))
        with session.micro_step(last=True), numerics.autocast():
            loss = session.trainable(x).float().sum()
        numerics.backward(loss)
        session.finish()
        session.zero_grad()

    for _ in range(2):
        step()
    seen = observe(step)
    session.close()
    numerics.close()
    assert isinstance(seen, tuple)
    return {op.dtype for op in seen}


@pytest.mark.parametrize(
    ("precision", "hook", "dtype"),
    [
        ("amp_bf16", "none", "float32"),
        ("amp_bf16", "bf16", "bfloat16"),
        ("amp_bf16", "fp16", "float16"),
        ("bf16", "none", "bfloat16"),
        ("fp32", "bf16", "bfloat16"),
    ],
)
def test_autocast_does_not_shrink_what_travels_but_a_hook_or_bf16_parameters_do(
    pools: Any, precision: str, hook: str, dtype: str
) -> None:
    assert pools(2).run(dtypes_that_travel, precision, hook) == [{dtype}, {dtype}]


def wide_model() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(40, 32), nn.Tanh(), nn.Linear(32, 36), nn.Tanh(), nn.Linear(36, 3)).double()


def powersgd_balance(mesh: Mesh, steps: int) -> tuple[float, float, bool]:
    """(delivered + carried - true) / true, lost / true over all steps, and whether replicas got the same."""
    options = SPECS.load("ddp").options(hook="powersgd", powersgd_rank=2)
    module = wide_model()
    session = IMPLEMENTATIONS.load("ddp")(module, mesh, options)
    true, delivered = torch.zeros(()), torch.zeros(())
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(8 * mesh.world_size, 40, generator=generator, dtype=torch.float64)
        mine = x[8 * mesh.rank : 8 * mesh.rank + 8]
        reference = wide_model()
        (reference(x).square().sum() / len(x)).backward()
        with session.micro_step(last=True):
            (session.trainable(mine).square().sum() / len(x) * session.loss_factor).backward()
        session.finish()
        order = reversed(list(zip(module.parameters(), reference.parameters(), strict=True)))
        pairs = [(p.grad, r.grad) for p, r in order]
        delivered = delivered + torch.cat([g.flatten() for g, _ in pairs])
        true = true + torch.cat([r.flatten() for _, r in pairs])
        session.zero_grad()
    carried = session.powersgd.error_dict[0]  # type: ignore[attr-defined]
    torch.distributed.all_reduce(carried)
    carried /= mesh.world_size
    everyone = [torch.empty_like(delivered) for _ in range(mesh.world_size)]
    torch.distributed.all_gather(everyone, delivered)
    session.close()
    return (
        # The carried error lies in the bucket's order; its norm is all that matters for the balance below.
        float((carried.norm() - (true - delivered).norm()).abs() / true.norm()),
        float((true - delivered).norm() / true.norm()),
        all(torch.equal(other, delivered) for other in everyone),
    )


def test_powersgd_in_one_bucket_loses_nothing_for_good(pools: Any) -> None:
    for balance, lost, same in pools(2).run(powersgd_balance, 8):
        assert same
        assert lost > 1e-3, "nothing was compressed"
        assert balance < 1e-12, "what is missing must be what is carried into the next step"


def ragged_model() -> nn.Module:
    torch.manual_seed(2)
    widths = [24, 48, 8, 96, 40, 40, 8, 16]
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.Tanh()]
    return nn.Sequential(*layers)


def sizes_launched(mesh: Mesh, key: str, cap: float) -> list[int]:
    module = ragged_model()
    session = IMPLEMENTATIONS.load(key)(module, mesh, SPECS.load(key).options(bucket_cap_mb=cap))

    def step() -> None:
        with session.micro_step(last=True):
            session.trainable(torch.ones(3, 24)).sum().backward()
        session.finish()
        session.zero_grad()

    for _ in range(2):
        step()
    seen = observe(step)
    session.close()
    assert isinstance(seen, tuple)
    return [op.numel for op in seen]


@pytest.mark.parametrize("cap", [1e-6, 0.001, 0.004, 0.01, 0.02, 1.0])
def test_our_buckets_are_those_of_ddp_at_the_same_size(pools: Any, cap: float) -> None:
    ours = pools(2).run(sizes_launched, "bucketed", cap)
    theirs = pools(2).run(sizes_launched, "ddp", cap)
    assert ours == theirs
    assert len(ours[0]) == {1e-6: 14, 1.0: 1}.get(cap, len(ours[0]))


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 2)
        self.use_right = True

    def forward(self, x: Tensor) -> Tensor:
        body = self.body(x)
        return self.left(body) + self.right(body) if self.use_right else self.left(body)


def skip_one_head(mesh: Mesh, cap: float) -> list[float]:
    torch.manual_seed(0)
    module = TwoHeads().double()
    session = IMPLEMENTATIONS.load("bucketed")(module, mesh, SPECS.load("bucketed").options(bucket_cap_mb=cap))
    norms = []
    for use_right in (True, False, True):
        module.use_right = use_right or mesh.rank == 1
        with session.micro_step(last=True):
            session.trainable(torch.ones(2, 4, dtype=torch.float64)).sum().backward()
        session.finish()
        norms.append(float(module.right.weight.grad.sum()))
        session.zero_grad()
    session.close()
    return norms


@pytest.mark.parametrize("cap", [1e-6, 25.0])
def test_bucketed_reduces_a_parameter_that_only_some_ranks_used(pools: Any, cap: float) -> None:
    all_use, one_uses, again = pools(2).run(skip_one_head, cap)[0]
    assert one_uses == pytest.approx(all_use / 2)
    assert again == pytest.approx(all_use)
