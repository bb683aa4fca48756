"""Twelve small training jobs for ranks of the host: ``planted.py JOB[,JOB...] [--steps N] [--rounds N] [--times FOLDER]``.

Several jobs take turns in one process; with ``--times`` each rank writes the times of their steps.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, silu
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

LARGER = 32 if os.environ.get("REAL_PROCESSOR") else 1
"""Batch of this machine's own processor over that of the planted one."""
if LARGER == 1:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "models"))
    import planted_processor

    planted_processor.begin()


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(8))
        self.head = nn.Linear(512, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.head(x)


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = (3, 32, 64, 128, 256, 256)
        self.layers = nn.ModuleList(nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in pairwise(widths))
        self.head = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.head(x.mean((2, 3)))


class Block(nn.Module):
    """A transformer's block; gated: as Llama has it."""

    def __init__(self, width: int, gated: bool) -> None:
        super().__init__()
        hidden = 2 * width if gated else 4 * width
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(width, hidden, bias=False), nn.Linear(hidden, width, bias=False)
        self.gate = nn.Linear(width, hidden, bias=False) if gated else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        q, k, v = (f(y).unflatten(-1, (-1, 32)).transpose(1, 2) for f in (self.q, self.k, self.v))
        x = x + self.o(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        y = self.norm2(x)
        up = self.up(y)
        return x + self.down(nn.functional.gelu(up) if self.gate is None else silu(self.gate(y)) * up)


class Transformer(nn.Module):
    def __init__(self, gated: bool, checkpointed: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(1024, 256)
        self.layers = nn.ModuleList(Block(256, gated) for _ in range(4))
        self.head = nn.Linear(256, 1024, bias=False)
        self.checkpointed = checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointed else layer(x)
        return self.head(x)


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(48 * LARGER, 512), torch.randint(16, (48 * LARGER,))


def images() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(8 * LARGER, 3, 48, 48), torch.randint(16, (8 * LARGER,))


def tokens() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randint(1024, (LARGER, 33))
    return x[:, :-1], x[:, 1:]


gpt, llama = partial(Transformer, False), partial(Transformer, True)
Job = tuple[Callable[[], nn.Module], Callable[[], Any], str, dict[str, Any]]
JOBS: dict[str, Job] = {
    "mlp-ddp": (Mlp, rows, "ddp", {}),
    "mlp-ddp-1mb": (Mlp, rows, "ddp", {"bucket_cap_mb": 1}),
    "conv-ddp": (Conv, images, "ddp", {"bucket_cap_mb": 1}),
    "gpt-ddp-no-sync": (gpt, tokens, "ddp", {"bucket_cap_mb": 2, "micro": 2}),
    "gpt-ddp-checkpoint": (partial(gpt, True), tokens, "ddp", {"bucket_cap_mb": 2}),
    "gpt-naive": (gpt, tokens, "naive", {}),
    "mlp-zero1": (Mlp, rows, "zero1", {}),
    "gpt-zero1": (gpt, tokens, "zero1", {"bucket_cap_mb": 2}),
    "llama-fsdp2": (llama, tokens, "fsdp2", {"reshard_after_forward": True}),
    "llama-fsdp2-no-reshard": (llama, tokens, "fsdp2", {"reshard_after_forward": False}),
    "llama-fsdp2-checkpoint": (partial(llama, True), tokens, "fsdp2", {"reshard_after_forward": True}),
    "llama-tp2": (llama, tokens, "tp2", {}),
}


class Training:
    """One job, step by step."""

    def __init__(self, name: str) -> None:
        model, self.batch, self.way, options = JOBS[name]
        torch.manual_seed(0)
        self.micro = options.get("micro", 1)
        wrapped = {key: value for key, value in options.items() if key != "micro"}
        self.model: Any = getattr(self, self.way)(model(), wrapped)
        parameters = self.model.parameters()
        if self.way == "zero1":
            self.optimizer: Any = ZeroRedundancyOptimizer(parameters, torch.optim.AdamW, lr=1e-4)
        else:
            self.optimizer = torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)

    def ddp(self, model: nn.Module, options: dict[str, Any]) -> nn.Module:
        return DistributedDataParallel(model, **options)

    zero1 = ddp

    def naive(self, model: nn.Module, _: dict[str, Any]) -> nn.Module:
        return model

    def fsdp2(self, model: nn.Module, options: dict[str, Any], mesh: Any = None) -> nn.Module:
        mesh = mesh or init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in model.layers:
            fully_shard(layer, mesh=mesh, **options)
        return fully_shard(model, mesh=mesh, **options)

    def tp2(self, model: nn.Module, options: dict[str, Any]) -> nn.Module:
        world = dist.get_world_size()
        tp = min(2, world)
        mesh = init_device_mesh("cpu", (world // tp, tp), mesh_dim_names=("dp", "tp"))
        columns, rows = ("q", "k", "v", "gate", "up"), ("o", "down")
        plan = {**dict.fromkeys(columns, ColwiseParallel()), **dict.fromkeys(rows, RowwiseParallel())}
        for layer in model.layers:
            parallelize_module(layer, mesh["tp"], plan)
        return model if world == tp else self.fsdp2(model, options, mesh["dp"])

    def step(self) -> None:
        self.optimizer.zero_grad()
        for micro in range(self.micro):
            x, y = self.batch()
            last = micro == self.micro - 1
            with nullcontext() if last or self.way != "ddp" else self.model.no_sync():
                out = self.model(x)
                loss = cross_entropy(out.flatten(0, -2), y.flatten())
                (loss / self.micro).backward()
        if self.way == "naive":
            for parameter in self.model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
        self.optimizer.step()


def timed(training: Training, steps: int) -> Iterator[float]:
    dist.barrier()
    for _ in range(steps):
        began = time.perf_counter()
        training.step()
        yield time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("jobs")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--times", type=Path)
    asked = parser.parse_args()
    dist.init_process_group("gloo")
    trainings = {name: Training(name) for name in asked.jobs.split(",")}
    rounds: dict[str, list[list[float]]] = {name: [] for name in trainings}
    for _ in range(asked.rounds):
        for name, training in trainings.items():
            rounds[name].append(list(timed(training, asked.steps)))
    if asked.times is not None:
        (asked.times / f"{dist.get_world_size()}-{dist.get_rank()}.json").write_text(json.dumps(rounds))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
