"""One process, no launcher; nothing is planted."""

import torch
from _clock import tick
from torch import nn


def main():
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(128, 128), nn.ReLU())]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = [torch.randn(1024, 128) for _ in range(8)]
    for step in range(400):
        inputs = batches[step % 8]
        optimizer.zero_grad()
        loss = (model(inputs) - inputs).square().mean()
        loss.backward()
        optimizer.step()
        tick()
    print(f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
