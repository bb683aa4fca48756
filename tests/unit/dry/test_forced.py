"""What a dry run forces: sharding that keeps its parameters, activations that are computed again."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.dry_runs import dry_run

pytest.importorskip("torch")

SCRIPT = """
import torch, torch.nn as nn, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4)])
for block in model:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(32, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_parameters_stay_whole(tmp_path: Path) -> None:
    gathers = {
        kept: sum(call["op"] == "all_gather" for call in dry_run(SCRIPT, tmp_path, changes={"reshard": kept})["calls"])
        for kept in ("yes", "no")
    }
    assert gathers["no"] < gathers["yes"]


def test_activations_are_computed_again(tmp_path: Path) -> None:
    plain, again = (dry_run(SCRIPT, tmp_path, changes=changes) for changes in ({}, {"recompute": "full"}))
    flop = [sum(run["operators"][i]["flop"] for i in run["order"]) for run in (plain, again)]
    assert not any(row["recomputed"] for row in plain["operators"])
    assert any(row["recomputed"] for row in again["operators"])
    assert (
        flop[1] - flop[0] == 4 * 2 * 32 * 64 * 256
    )  # the first product of each block; the last one's result is not needed


def test_activations_are_kept(tmp_path: Path) -> None:
    script = SCRIPT.replace("model(torch", "checkpoint(model, torch").replace(
        "(32, 64))", "(32, 64), use_reentrant=False)"
    )
    script = "from torch.utils.checkpoint import checkpoint\n" + script
    again, kept = (dry_run(script, tmp_path, changes=changes) for changes in ({}, {"recompute": "no"}))
    assert any(row["recomputed"] for row in again["operators"])
    assert not any(row["recomputed"] for row in kept["operators"])


def test_gradients_are_reduced_once_a_step(tmp_path: Path) -> None:
    script = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters())
for i in range(8):
    model(torch.randn(32, 64)).sum().backward()
    if i % 4 == 3:
        optimizer.step()
"""
    each, last = (dry_run(script, tmp_path, changes=changes)["calls"] for changes in ({}, {"sync": "last"}))
    assert (len(each), len(last)) == (4, 1)
    assert {call["size_bytes"] for call in each} == {call["size_bytes"] for call in last}
