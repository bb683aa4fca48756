"""One process: its optimizer, Python between operators, collections, saving, evaluation, compilation."""

from __future__ import annotations

import gc
import tempfile

import torch
import torch.distributed.checkpoint as dcp
from clock import STEPS, Clock
from torch import nn

WIDTH, DEPTH, BATCH = 128, 12, 16
EVERY = 5

torch.manual_seed(0)
layers = [layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
model = nn.Sequential(*layers)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
clock = Clock(mean=True)
for step in range(STEPS):
    loss = model(torch.randn(BATCH, WIDTH)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    clock.step(loss)
clock.tell()
