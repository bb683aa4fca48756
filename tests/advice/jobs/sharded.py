"""FSDP2 on two ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from clock import STEPS, Clock
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
WIDTH, DEPTH, TOKENS, MICRO_STEPS = 64, 8, 2000, 1


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.linear(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(DEPTH)))
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embedding(x)))


torch.manual_seed(0)
model = Model()
for block in model.blocks:
    fully_shard(block)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
clock = Clock()
for _step in range(STEPS):
    for _micro in range(MICRO_STEPS):
        loss = model(torch.randint(0, TOKENS, (8, 8))).square().mean()
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    clock.step(loss)
clock.tell()
