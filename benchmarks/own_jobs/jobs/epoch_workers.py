"""One process; epochs of 25 steps, each of which starts the loader's two workers anew. --clean: they persist."""

import sys

import torch
from _clock import tick
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(0)
    layers = [layer for _ in range(5) for layer in (nn.Linear(256, 256), nn.ReLU())]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(25 * 64, 256))
    loader = DataLoader(data, batch_size=64, num_workers=2, persistent_workers="--clean" in sys.argv)
    for _ in range(14):
        for (inputs,) in loader:
            optimizer.zero_grad()
            loss = (model(inputs.repeat(8, 1)) - inputs.repeat(8, 1)).square().mean()
            loss.backward()
            optimizer.step()
            tick()
    print(f"loss {loss.item():.5f}")


if __name__ == "__main__":
    main()
