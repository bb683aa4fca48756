"""DDP, 2 ranks, 4 micro-batches a step; all of them reduce. --clean: the last one does (no_sync). --alone: none does."""

import contextlib
import sys

import torch
import torch.distributed as dist
from _clock import faulty, leave, tick
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MICRO_BATCHES = 4


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [layer for _ in range(5) for layer in (nn.Linear(512, 512), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(dist.get_rank())
    batches = [torch.randn(32, 512, generator=generator) for _ in range(8)]
    for _ in range(200):
        optimizer.zero_grad()
        accumulates = not faulty()
        for micro in range(MICRO_BATCHES):
            inputs = batches[micro % 8]
            quiet = "--alone" in sys.argv or (accumulates and micro < MICRO_BATCHES - 1)
            with model.no_sync() if quiet else contextlib.nullcontext():
                loss = (model(inputs) - inputs).square().mean() / MICRO_BATCHES
                loss.backward()
        optimizer.step()
        tick()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.5f}")
    del model, optimizer, loss
    leave()


if __name__ == "__main__":
    main()
