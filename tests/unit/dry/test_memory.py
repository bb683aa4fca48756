"""Bytes of a dry run by what they are for: as counted by hand, and as torch counts them in a real run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.dry_runs import dry_run

from stepscope.records.dry_run import MEMORY_KINDS

MB = 1 << 20

NET = """
    import torch, torch.nn as nn
    from torch.utils.checkpoint import checkpoint

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(256, 1024, bias=False), nn.Linear(1024, 256, bias=False)
            self.register_buffer("mask", torch.ones(1024))

        def forward(self, x):
            return self.down(torch.relu(self.up(x)) * self.mask)

    model = Net()
"""


def most(memory: dict[str, Any]) -> dict[str, int]:
    points = (*memory["samples"], memory["peak"])
    return {kind: max(point[n] for point in points) for n, kind in enumerate(MEMORY_KINDS)}


def test_each_kind_has_its_bytes(tmp_path: Path) -> None:
    script = (
        NET
        + """
    optimizer = torch.optim.AdamW(model.parameters())
    while True:
        x = torch.randn(2048, 256)
        out = model(x)
        out.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    """
    )
    memory = dry_run(script, tmp_path, world=1)["memory"]
    found = most(memory)
    weights = 2 * 256 * 1024 * 4
    assert found["parameters"] == found["gradients"] == weights
    assert found["optimizer"] == 2 * weights + 2 * 4
    assert found["buffers"] == 1024 * 4 + 2048 * 256 * 4  # the mask and the batch
    assert found["activations"] == 2 * 2048 * 1024 * 4 + 8  # of relu, of its product with the mask, of the sum
    assert memory["samples"][0] == [weights, weights, 2 * weights + 8, 0, 0, found["buffers"], 2048 * 256 * 4]
    assert memory["peak_op"] == "aten.mm.default"
    assert memory["peak_place"].endswith("script.py:12")
    rows = {(row["kind"], row["module"]): row for row in memory["at_peak"]}
    assert rows["activations", "Net"]["size_bytes"] == 2 * 2048 * 1024 * 4
    assert rows["activations", "Net"]["shape"] == [2048, 1024]
    assert sum(row["size_bytes"] for row in memory["at_peak"]) == sum(memory["peak"])


def test_what_is_computed_again_is_an_activation_again(tmp_path: Path) -> None:
    script = (
        NET
        + """
    optimizer = torch.optim.SGD(model.parameters())
    while True:
        x = torch.randn(2048, 256, requires_grad=True)
        checkpoint(model, x, use_reentrant=False).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    """
    )
    memory = dry_run(script, tmp_path, world=1)["memory"]
    column = [point[MEMORY_KINDS.index("activations")] for point in memory["samples"]]
    assert max(column) == 2 * 2048 * 1024 * 4 + 8
    forward_ends = next(n for n, size in enumerate(column) if size)
    assert column[forward_ends] <= 8


def test_a_device_does_not_hold_what_is_on_the_host(tmp_path: Path) -> None:
    script = (
        NET
        + """
    model.cuda()
    optimizer = torch.optim.SGD(model.parameters())
    kept = torch.zeros(64 << 20)
    while True:
        with torch.autograd.graph.save_on_cpu():
            loss = model(torch.randn(2048, 256, device="cuda")).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    """
    )
    memory = dry_run(script, tmp_path, world=1)["memory"]
    assert sum(memory["peak"]) < 40 * MB


def test_gathered_and_sharded_bytes_are_those_of_a_real_run(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    command = [sys.executable, "-m", "benchmarks.dry_memory", "fsdp2-mixed"]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
