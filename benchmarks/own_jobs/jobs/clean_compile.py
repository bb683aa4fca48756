"""One process, torch.compile; nothing is planted."""

import torch
from _clock import tick
from torch import nn


def main():
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.GELU())]
    model = torch.compile(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = [torch.randn(512, 256) for _ in range(8)]
    for step in range(400):
        inputs = batches[step % 8]
        optimizer.zero_grad()
        loss = (model(inputs) - inputs).square().mean()
        loss.backward()
        optimizer.step()
        tick()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
