"""What the hook changes for `tune` in a job of real ranks: the same gradients from fewer reductions, arguments as asked."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from stepscope.launch.hooked_job import HOOK
from stepscope.rank.mesh import Mesh

MICRO_STEPS = 3
STEPS = (3, 2, 3, 1)
"""Backward passes of each step: some have fewer than the others."""


class Files:
    """Stands in for the files of a hooked process."""

    host = "node"

    def __init__(self, knobs: dict[str, object]) -> None:
        self.options = {"knobs": knobs}
        self.written: dict[str, Any] = {}

    def write(self, kind: str, name: str, document: dict[str, Any]) -> None:  # noqa: ARG002
        self.written.update(document["found"])


def turned(knobs: dict[str, object]) -> Files:
    sys.path.insert(0, str(HOOK))
    try:
        module = importlib.import_module("stepscope_hook.knobs")
    finally:
        sys.path.remove(str(HOOK))
    files = Files(knobs)
    module.turn(files)
    return files


def train(mesh: Mesh, knobs: dict[str, object]) -> tuple[list[float], int, dict[str, str]]:
    """(parameters at the end, reductions, what the hook says)."""
    kept = (DistributedDataParallel.__init__, DataLoader.__init__)
    files = turned(knobs)
    calls = 0
    try:
        torch.manual_seed(0)
        plain = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()
        ddp = DistributedDataParallel(plain, process_group=mesh.group)
        if "comm_hook" not in knobs:

            def counted(state: object, bucket: Any) -> Any:  # noqa: ARG001
                nonlocal calls
                calls += 1
                work = torch.distributed.all_reduce(
                    bucket.buffer().div_(2), group=mesh.group, async_op=True
                )  # of 2 ranks
                return work.get_future().then(lambda done: done.value()[0])

            counted.__annotations__.clear()  # DDP compares them with types, and ours are texts
            ddp.register_comm_hook(None, counted)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        for number, passes in enumerate(STEPS):
            for micro in range(passes):
                generator = torch.Generator().manual_seed(100 * number + 10 * micro + mesh.rank)
                ddp(torch.randn(5, 4, generator=generator, dtype=torch.float64)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        loader = DataLoader([1, 2, 3], num_workers=0)
        files.written["workers"] = loader.num_workers
        return torch.cat([p.detach().flatten() for p in ddp.parameters()]).tolist(), calls, dict(files.written)
    finally:
        DistributedDataParallel.__init__, DataLoader.__init__ = kept  # type: ignore[method-assign]
        sys.modules.pop("stepscope_hook.knobs", None)
        sys.modules.pop("stepscope_hook", None)


def test_one_reduction_a_step_gives_the_gradients_of_all_of_them_also_where_steps_have_fewer_passes(pools) -> None:  # type: ignore[no-untyped-def]
    (each, many, _), (same, _, _) = pools(2).run(train, {})
    (once, few, said), (other, _, _) = pools(2).run(train, {"no_sync": MICRO_STEPS})
    assert each == same
    assert once == pytest.approx(each, abs=1e-14)
    assert other == once
    assert (many, few) == (sum(STEPS), 2)  # of the steps with 3 passes; the others are reduced by hand
    assert said["no_sync"]["applied"]


def test_arguments_are_those_asked_for_and_what_was_before_is_said(pools) -> None:  # type: ignore[no-untyped-def]
    knobs = {"bucket_cap_mb": 7, "gradient_as_bucket_view": True, "num_workers": 1}
    _, _, said = pools(2).run(train, knobs)[0]
    assert said["workers"] == 1
    assert said["bucket_cap_mb"] == {"applied": True, "words": "7, was default"}
    assert said["num_workers"] == {"applied": True, "words": "1, was 0"}
    assert said["gradient_as_bucket_view"]["applied"]


def test_gradients_in_bf16_are_near_those_in_full(pools) -> None:  # type: ignore[no-untyped-def]
    plain, _, _ = pools(2).run(train, {})[0]
    rounded, _, said = pools(2).run(train, {"comm_hook": "bf16"})[0]
    assert said["comm_hook"] == {"applied": True, "words": "bf16"}
    assert rounded == pytest.approx(plain, abs=0.05)
    assert rounded != plain
