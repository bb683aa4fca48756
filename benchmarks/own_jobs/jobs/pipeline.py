"""Pipeline of 2 stages (GPipe), 2 micro-batches: a third of each step is bubble. --alone: stages that need nothing."""

import sys

import torch
import torch.distributed as dist
from _clock import tick
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

MICRO_BATCHES = 2


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    layers = [layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.ReLU())]
    module = nn.Sequential(*layers)
    stage = PipelineStage(module, rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, MICRO_BATCHES, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(0)
    losses = []
    batches = [torch.randn(1024, 256, generator=generator) for _ in range(8)]
    for step in range(200):
        inputs = batches[step % 8]
        optimizer.zero_grad()
        if "--alone" in sys.argv:
            for part in inputs.chunk(MICRO_BATCHES):
                losses.append(nn.functional.mse_loss(module(part), part))
                losses[-1].backward()
        elif rank == 0:
            schedule.step(inputs)
        else:
            schedule.step(target=inputs, losses=losses)
        optimizer.step()
        tick()
    if rank == 1:
        print(f"loss {losses[-1].item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
