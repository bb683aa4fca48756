"""2 ranks; gradients are averaged one by one after the backward pass. --clean: DDP. --alone: nothing is sent."""

import sys

import torch
import torch.distributed as dist
from _clock import leave, tick
from torch import nn
from torch.nn.parallel import DistributedDataParallel

OPTION = sys.argv[1] if len(sys.argv) > 1 else ""


def average_gradients(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(512, 512), nn.ReLU())]
    model = nn.Sequential(*layers)
    if OPTION == "--clean":
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(dist.get_rank())
    batches = [torch.randn(96, 512, generator=generator) for _ in range(8)]
    for step in range(250):
        inputs = batches[step % 8]
        optimizer.zero_grad()
        loss = (model(inputs) - inputs).square().mean()
        loss.backward()
        if not OPTION:
            average_gradients(model)
        optimizer.step()
        tick()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.5f}")
    del model, optimizer, loss
    leave()


if __name__ == "__main__":
    main()
