"""Replicas that wait for a loader."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from clock import STEPS, Clock
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

dist.init_process_group("gloo")
WIDTH, SAMPLES, BATCH = 64, 64, 8


def decode(number: int) -> torch.Tensor:
    """Of a sample: reads it, or computes."""
    time.sleep(0.001)
    return torch.full((WIDTH,), number / SAMPLES)


class Samples(Dataset):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> torch.Tensor:
        return decode(number)


torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, WIDTH)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
loader = DataLoader(Samples(), batch_size=BATCH)
clock = Clock(mean=True)
while len(clock.laps) < STEPS:
    for batch in loader:
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        clock.step(loss)
clock.tell()
