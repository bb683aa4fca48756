"""Replicas on two ranks: a step of DDP, written out."""

from __future__ import annotations

import torch
import torch.distributed as dist
from clock import STEPS, Clock
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
WIDTH, DEPTH, BATCH, MICRO_STEPS = 256, 8, 16, 1

torch.manual_seed(0)
layers = [layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
model = DistributedDataParallel(nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
clock = Clock()
for _step in range(STEPS):
    for _micro in range(MICRO_STEPS):
        loss = model(torch.randn(BATCH, WIDTH)).square().mean()
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    clock.step(loss, BATCH * MICRO_STEPS)
clock.tell()
