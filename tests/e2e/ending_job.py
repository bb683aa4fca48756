"""A small DDP job on gloo for tests of how jobs end: what goes wrong, on which rank, and in which step."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def train(mode: str, at_step: int, steps: int) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        if rank == dist.get_world_size() - 1 and step == at_step:
            go_wrong(mode)
        model(torch.randn(8, 16)).sum().backward()
        optimizer.step()
        time.sleep(0.01)
    sys.stdout.write(f"rank {rank} trained {step} steps\n")
    dist.destroy_process_group()


def go_wrong(mode: str) -> None:
    if mode == "raise":
        raise ValueError("bad batch")
    if mode == "hang":
        time.sleep(1000)
    if mode == "kill":
        os.kill(os.getpid(), 9)
    if mode == "exit":
        sys.exit(7)


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
