"""DDP, 2 ranks; rank 1 does about a quarter more work in every forward pass. --clean: it does not."""

import sys

import torch
import torch.distributed as dist
from _clock import leave, tick
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CLEAN = "--clean" in sys.argv


class Net(nn.Module):
    def __init__(self, extra):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(6))
        self.extra = extra

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
            for _ in range(self.extra):
                with torch.no_grad():
                    x @ layer.weight
        return x


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    slow = dist.get_rank() == 1 and not CLEAN
    model = DistributedDataParallel(Net(extra=1 if slow else 0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(512, 256)
    for _ in range(300):
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        tick()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.6f}")
    del model, optimizer, loss
    leave()


if __name__ == "__main__":
    main()
