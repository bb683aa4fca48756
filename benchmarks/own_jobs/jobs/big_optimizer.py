"""One process; AdamW updates an embedding of 4.8 million numbers, little else is computed. --clean: it stays."""

import sys

import torch
from _clock import tick
from torch import nn

CLEAN = "--clean" in sys.argv


def main():
    torch.manual_seed(0)
    embed, head = nn.Embedding(75_000, 64), nn.Linear(64, 64)
    updated = [*head.parameters()] if CLEAN else [*embed.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(updated, lr=1e-3)
    for _ in range(200):
        tokens = torch.randint(0, 75_000, (16, 32))
        embed.zero_grad(), head.zero_grad()
        loss = head(embed(tokens)).square().mean()
        loss.backward()
        optimizer.step()
        tick()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
