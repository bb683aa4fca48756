"""Workloads on ranks: their module and facts, batches, the setting of a plan, and what is compared with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from stepscope.rank.workloads import REGISTRY as MODULES
from stepscope.rank.workloads import Task
from stepscope.records.plan import InputNeeds, ModelFacts, Setting
from stepscope.records.samples import PlanCheck
from stepscope.workloads import REGISTRY as WORKLOADS

EXACT = 1e-12
"""Relative error of gradients in float64."""


def built(workload: str, model: dict[str, Any], needs: InputNeeds, dtype: str = "float64") -> tuple[Task, ModelFacts]:
    """The same parameters at each call."""
    family = WORKLOADS.load(workload)
    options = family.options(**model)
    torch.manual_seed(5)
    task = MODULES.load(workload)(options, needs, family.losses[0])
    task.module.to(getattr(torch, dtype))
    return task, family.facts(options, needs, dtype)


def batch(needs: InputNeeds, samples: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Inputs and targets; of a language model, a shift of the inputs."""
    generator = torch.Generator().manual_seed(seed)
    if needs.kind == "features":
        x = torch.randn(samples, needs.num_features or 1, generator=generator, dtype=dtype)
    else:
        x = torch.randint(1, needs.vocab_size or 1, (samples, needs.seq_len or 1), generator=generator)
    if needs.kind == "lm":
        return x, x.roll(1, dims=1)
    return x, torch.randint(needs.num_classes or 1, (samples,), generator=generator)


def setting(world_size: int, mesh: Mapping[str, int] | None = None, **options: Any) -> Setting:
    fields = {"device": "cpu", "backend": "gloo", "precision": "fp32", "optimizer": "sgd"} | options
    return Setting(world_size=world_size, mesh=mesh or {}, **fields)


def difference(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """Norm of the difference over the norm, of the gradients in ``found``."""
    if not found.keys() <= expected.keys():
        return float("inf")
    ours, theirs = (torch.cat([g[name].flatten() for name in found]) for g in (found, expected))
    return float((ours - theirs).norm() / theirs.norm())


def gradients(module: torch.nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


def assert_as_planned(verdict: PlanCheck) -> None:
    assert verdict.unavailable is None
    assert verdict.observed == verdict.expected
    assert verdict.matches
