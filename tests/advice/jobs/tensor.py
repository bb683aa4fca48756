"""A tensor-parallel group of two ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from clock import STEPS, Clock
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
world = dist.get_world_size()
WIDTH, DEPTH, BATCH = 256, 4, 16

torch.manual_seed(0)
layers = [
    layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))
]
model = nn.Sequential(*layers)
plan = {str(at): RowwiseParallel() if at % 3 else ColwiseParallel() for at in range(len(layers)) if at % 3 != 1}
model = parallelize_module(model, init_device_mesh("cpu", (world,)), plan)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
clock = Clock()
for _ in range(STEPS):
    loss = model(torch.randn(BATCH, WIDTH)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    clock.step(loss)
clock.tell()
