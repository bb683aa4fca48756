"""A training job with faults that options plant, for benchmarks/tune_planted.py: torchrun tuned_job.py --load-ms 2."""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset[tuple[torch.Tensor, int]]):
    """Random vectors, each of which takes so many ms to load."""

    def __init__(self, width: int, load_ms: float) -> None:
        self.width, self.load_ms = width, load_ms

    def __len__(self) -> int:
        return 10**7

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(self.load_ms / 1e3)
        return torch.full((self.width,), index % 7 / 7), index % 10


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--load-ms", type=float, default=0.0)
    parser.add_argument("--steps", type=int, default=100_000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [layer for _ in range(given.depth) for layer in (nn.Linear(given.width, given.width), nn.ReLU())]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers, nn.Linear(given.width, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = iter(DataLoader(Samples(given.width, given.load_ms), batch_size=given.batch_size))
    for _ in range(given.steps):
        for _ in range(given.accumulation):
            inputs, labels = next(batches)
            (nn.functional.cross_entropy(model(inputs), labels) / given.accumulation).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
