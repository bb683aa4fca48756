"""DDP, 2 ranks; rank 1 holds many objects and collects garbage every 15 steps."""

import gc

import torch
import torch.distributed as dist
from _clock import leave, tick
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(128, 128), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    cache = [{"name": [number]} for number in range(100_000)] if dist.get_rank() == 1 else []
    gc.disable()
    dist.barrier()
    batches = [torch.randn(2048, 128) for _ in range(8)]
    for step in range(1, 301):
        inputs = batches[step % 8]
        optimizer.zero_grad()
        loss = (model(inputs) - inputs).square().mean()
        loss.backward()
        optimizer.step()
        if step % 15 == 0 and cache:
            gc.collect()
        tick()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.5f}")
    del model, optimizer, loss
    leave()


if __name__ == "__main__":
    main()
