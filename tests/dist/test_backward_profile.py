"""Steps without reductions on real ranks: every strategy's backward pass is profiled, and nothing travels."""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
import pytest
import torch

from stepscope.core.errors import Unavailable
from stepscope.datasets import Split
from stepscope.predict.overlap import transport_of
from stepscope.predict.timeline import slowest_of, step_timeline
from stepscope.rank.backward import MOST_STEPS, TOGETHER, backward_profile
from stepscope.rank.loading import Loader
from stepscope.rank.mesh import Mesh
from stepscope.rank.plancheck import ObservedOp, observe
from stepscope.rank.precision import Numerics
from stepscope.rank.sampling import Sampling
from stepscope.rank.strategies import REGISTRY as IMPLEMENTATIONS
from stepscope.rank.timer import GradientReadiness, NoTimer, Regions
from stepscope.rank.training import Training
from stepscope.rank.workloads import REGISTRY as MODULES
from stepscope.records.cell import CellSpec
from stepscope.records.plan import InputNeeds, ModelFacts, Setting
from stepscope.records.prediction import BackwardProfile
from stepscope.strategies import REGISTRY as SPECS
from stepscope.workloads import REGISTRY as WORKLOADS

NEEDS = InputNeeds(kind="features", num_features=12, num_classes=4)
LAYERS = [48, 32, 24]
REPLICATED = ("naive", "interleaved", "bucketed", "ddp")
VARIANTS = [(key, dict(variant)) for key in REPLICATED for variant in SPECS.load(key).variants]


def cell_of(mesh: Mesh, key: str, options: dict[str, Any], precision: str, accumulation: int) -> CellSpec:
    return CellSpec(
        cell_id="c", workload="mlp", model={"layers": LAYERS}, dataset="synthetic", dataset_options={},
        data_digest="", strategy=key, strategy_options=options, precision=precision, accumulation=accumulation,
        world_size=mesh.world_size, micro_batch=4, global_batch=4 * accumulation * mesh.world_size,
        batch_rule="micro_batch", optimizer="adam", lr=0.01, momentum=0.0, lr_warmup=0, weight_decay=0.0, clip=None,
        loss="ce", steps=4, epochs=None, seed=1, num_workers=0, pin_memory=False, persistent_workers=False,
        cudnn_benchmark=False, device="cpu", backend="gloo", threads_per_rank=1,
    )  # fmt: skip


def facts() -> ModelFacts:
    family = WORKLOADS.load("mlp")
    return family.facts(family.options(layers=LAYERS), NEEDS, "float32")


def profiled(
    mesh: Mesh, key: str, options: dict[str, Any], precision: str = "fp32", accumulation: int = 1
) -> tuple[BackwardProfile, tuple[ObservedOp, ...] | Unavailable, bool, bool, float]:
    """Train a few steps, profile, train again; the profile, what travelled meanwhile, whether both ranks agreed at the
    end of training and whether gradients and replicas are usable afterwards, and how long the profile took, s."""
    cell = cell_of(mesh, key, options, precision, accumulation)
    family, spec = WORKLOADS.load("mlp"), SPECS.load(key)
    numerics = Numerics(precision, mesh.device)
    torch.manual_seed(3)
    task = MODULES.load("mlp")(family.options(layers=LAYERS), NEEDS, "ce")
    module = numerics.prepare(task.module)
    readiness = GradientReadiness(module, NoTimer())
    session = IMPLEMENTATIONS.load(key)(module, mesh, spec.options(**options))
    training = Training(cell, task, session, numerics, NoTimer(), readiness)
    samples = 3 * cell.global_batch + 1  # with a tail, in which most ranks are empty
    rng = np.random.default_rng(0)
    split = Split(x=rng.standard_normal((samples, 12), dtype=np.float32), y=rng.integers(0, 4, samples))
    sampling = Sampling(
        num_samples=samples, world_size=mesh.world_size, micro_batch=4, accumulation=accumulation, seed=1
    )
    plain = Regions(enabled=False)
    with Loader(split, sampling, rank=mesh.rank, device=mesh.device) as loader:
        windows = loader.endless()
        for window, batches in itertools.islice(windows, 4):
            training.step(window, batches, plain)
        agreed = same_on_all_ranks(mesh, module)
        found: list[BackwardProfile] = []
        took: list[float] = []

        def profile() -> None:
            before = time.monotonic()
            found.append(
                backward_profile(
                    cell, task, session, numerics, windows, device=mesh.device, optimizer=training.optimizer
                )
            )
            took.append(time.monotonic() - before)

        travelled = observe(profile)
        window, batches = next(windows)
        training.step(window, batches, plain)  # the strategy is whole: it still reduces
        usable = all(torch.isfinite(p).all() for p in module.parameters())
    session.close()
    readiness.close()
    numerics.close()
    return found[0], travelled, agreed, usable, took[0]


def same_on_all_ranks(mesh: Mesh, module: torch.nn.Module) -> bool:
    mine = torch.cat([p.detach().double().flatten() for p in module.parameters()])
    others = [torch.empty_like(mine) for _ in range(mesh.world_size)]
    torch.distributed.all_gather(others, mine)
    return all(torch.equal(mine, each) for each in others)


def check_complete(profile: BackwardProfile, *, accumulation: int = 1) -> None:
    offsets = [r.ready_ns for r in profile.ready]
    assert sorted(r.name for r in profile.ready) == sorted(p.name for p in facts().parameters)
    assert profile.unused == ()
    assert offsets == sorted(offsets)
    assert offsets[0] > 0
    assert len(set(offsets)) > 1
    assert offsets[-1] <= profile.backward_ns
    assert profile.forward_ns > 0
    assert profile.optimizer_ns > 0
    assert profile.micro_batch == 4
    assert 1 <= profile.steps <= MOST_STEPS
    assert (profile.earlier_backward_ns > 0) == (accumulation > 1)


@pytest.mark.parametrize(("key", "options"), VARIANTS, ids=str)
def test_ready_times_are_complete_and_increasing_and_nothing_travels(
    pools: Any, key: str, options: dict[str, Any]
) -> None:
    for profile, travelled, agreed, usable, took_s in pools(2).run(profiled, key, options):
        check_complete(profile)
        assert travelled == ()
        assert agreed
        assert usable
        assert took_s < 20  # a budget of 0.9 s; the rest is patience with a shared machine


@pytest.mark.parametrize("key", REPLICATED)
def test_with_accumulation_the_last_micro_step_is_profiled(pools: Any, key: str) -> None:
    for profile, travelled, _, _, _ in pools(2).run(profiled, key, {}, "fp32", 3):
        check_complete(profile, accumulation=3)
        assert travelled == ()


@pytest.mark.parametrize("precision", ["amp_bf16", "amp_fp16"])
def test_the_order_is_the_one_that_plans_use(pools: Any, precision: str) -> None:
    planned = facts()
    order = planned.ready_order_autocast or planned.ready_order
    for profile, *_ in pools(2).run(profiled, "ddp", {}, precision):
        assert [r.name for r in profile.ready] == [planned.parameters[i].name for i in order]


LATE_S = 0.03


def profiled_together(mesh: Mesh, key: str) -> tuple[BackwardProfile, int]:
    """The profile of a strategy that cannot compute without its collectives, each of which is waited for ``LATE_S`` longer,
    and the time that all its steps took without that, ns."""
    cell = cell_of(mesh, key, {}, "fp32", 1)
    family, spec = WORKLOADS.load("mlp"), SPECS.load(key)
    numerics = Numerics("fp32", mesh.device)
    task = MODULES.load("mlp")(family.options(layers=LAYERS), NEEDS, "ce")
    session = IMPLEMENTATIONS.load(key)(numerics.prepare(task.module), mesh, spec.options(), facts())
    training = Training(cell, task, session, numerics, NoTimer(), None)
    rng = np.random.default_rng(0)
    split = Split(x=rng.standard_normal((64, 12), dtype=np.float32), y=rng.integers(0, 4, 64))
    sampling = Sampling(num_samples=64, world_size=mesh.world_size, micro_batch=4, accumulation=1, seed=1)
    spent: list[int] = []
    wait = torch.distributed.Work.wait

    def late(*args: Any) -> Any:
        began = time.perf_counter_ns()
        time.sleep(LATE_S)
        spent.append(time.perf_counter_ns() - began)
        return wait(*args)

    torch.distributed.Work.wait = late  # type: ignore[method-assign]
    began = time.perf_counter_ns()
    try:
        with Loader(split, sampling, rank=mesh.rank, device=mesh.device) as loader:
            found = backward_profile(
                cell, task, session, numerics, loader.endless(), device=mesh.device, optimizer=training.optimizer,
                sharded=spec.sharded, together=True,
            )  # fmt: skip
    finally:
        torch.distributed.Work.wait = wait  # type: ignore[method-assign]
    took = time.perf_counter_ns() - began
    session.close()
    numerics.close()
    assert len(spent) >= 4 * TOGETHER
    return found, took - sum(spent)


@pytest.mark.parametrize("key", ["fsdp2", "zero1"])
def test_where_something_must_travel_waiting_is_left_out(pools: Any, key: str) -> None:
    """More than 100 ms of waiting in each step, none of which is computation."""
    for profile, rest_ns in pools(2).run(profiled_together, key):
        assert profile.steps == TOGETHER - 1
        assert 3 * profile.step_ns < rest_ns  # of six steps three or more are as long as the median
        assert bool(profile.unused) == (key == "fsdp2")


def test_a_single_rank_is_profiled_too_and_a_timeline_can_be_made_of_it(pools: Any) -> None:
    [(profile, *_)] = pools(1).run(profiled, "single", {})
    check_complete(profile)
    setting = Setting(device="cpu", backend="gloo", world_size=2, precision="fp32", optimizer="adam")
    kind = SPECS.load("bucketed")
    plan = kind.comm_plan(facts(), setting, kind.options(bucket_cap_mb=0.004))
    line = step_timeline(slowest_of([profile]), plan, lambda _, size: 1e10 + size, transport=transport_of("gloo"))
    assert len(line.buckets) > 1
    assert line.step_ns > profile.step_ns
