"""Replicas whose gradients are reduced by hand, after the backward pass."""

from __future__ import annotations

import torch
import torch.distributed as dist
from clock import STEPS, Clock
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817

dist.init_process_group("gloo")
world = dist.get_world_size()
WIDTH, DEPTH = 96, 24

torch.manual_seed(0)
layers = [layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
model = nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
clock = Clock()
for _ in range(STEPS):
    loss = model(torch.randn(16, WIDTH)).square().mean()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= world
    optimizer.step()
    optimizer.zero_grad()
    clock.step(loss)
clock.tell()
