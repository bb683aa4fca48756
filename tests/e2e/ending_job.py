"""A small DDP job on gloo for tests of how jobs end: what goes wrong, on which rank, and in which step."""

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Slow(dict[str, int]):
    """What takes seconds to save."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        time.sleep(3)
        return dict, ()


def train(mode: str, at_step: int, steps: int, timeout_s: float = 600.0) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        if rank == dist.get_world_size() - 1 and step == at_step:
            go_wrong(mode)
        if mode == "slow" and step in (at_step, 2 * at_step):
            is_slow(model, evaluates=step == at_step)
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
    if mode == "launcher":
        os.kill(os.getppid(), 9)
    if mode == "kill":
        os.kill(os.getpid(), 9)
    if mode == "exit":
        sys.exit(7)


def is_slow(model: torch.nn.Module, *, evaluates: bool) -> None:
    """Seconds without a step, in which all is well, on every rank."""
    if not evaluates:
        torch.save(Slow(), os.devnull)
        return
    model.eval()
    with torch.no_grad():
        for _ in range(4):
            model(torch.randn(8, 16))
            time.sleep(0.8)
    model.train()


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *map(float, sys.argv[4:]))
