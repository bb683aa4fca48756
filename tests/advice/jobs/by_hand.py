"""Replicas that prepare their batches in the loop."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from clock import STEPS, Clock
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

dist.init_process_group("gloo")
WIDTH = 64


def prepare(number: int) -> torch.Tensor:
    """Reads a batch."""
    time.sleep(0.008)
    return torch.full((8, WIDTH), number / 100)


class Batches(Dataset):
    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, number: int) -> torch.Tensor:
        return prepare(number)


torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, WIDTH)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
clock = Clock(mean=True)
for number in range(STEPS):
    batch = prepare(number)
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    clock.step(loss)
clock.tell()
