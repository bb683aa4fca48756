"""A pipeline of two stages."""

from __future__ import annotations

import torch
import torch.distributed as dist
from clock import STEPS, Clock
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
WIDTH, BATCH, MICRO_BATCHES = 512, 64, 2
LAYERS = (6, 6)

torch.manual_seed(0)
layers = [layer for _ in range(LAYERS[rank]) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
model = nn.Sequential(*layers)
stage = PipelineStage(model, rank, world, torch.device("cpu"))
schedule = ScheduleGPipe(stage, n_microbatches=MICRO_BATCHES, loss_fn=nn.functional.mse_loss)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
clock = Clock()
for _ in range(STEPS):
    losses: list[torch.Tensor] = []
    if rank == 0:
        schedule.step(torch.randn(BATCH, WIDTH))
    else:
        schedule.step(target=torch.randn(BATCH, WIDTH), losses=losses)
    optimizer.step()
    optimizer.zero_grad()
    dist.barrier()
    clock.step(torch.stack(losses).mean() if losses else torch.zeros(()))
clock.tell()
