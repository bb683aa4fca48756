"""DDP, 2 ranks; rank 1 never enters an all-reduce of step 120; gloo gives up after 40 s."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from _clock import leave, tick
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def wait_for_a_file():
    while True:
        time.sleep(1)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=40))
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(128, 128), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = [torch.randn(2048, 128) for _ in range(8)]
    for step in range(1, 301):
        inputs = batches[step % 8]
        optimizer.zero_grad()
        loss = (model(inputs) - inputs).square().mean()
        if step == 120 and dist.get_rank() == 1:
            wait_for_a_file()
        if step % 10 == 0:
            dist.all_reduce(loss.detach())
        loss.backward()
        optimizer.step()
        tick()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.5f}")
    del model, optimizer, loss
    leave()


if __name__ == "__main__":
    main()
