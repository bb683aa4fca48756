"""DDP, 2 ranks whose layers take a fixed time of the processor; those of rank 1 four times as much. --clean: as much."""

import time

import torch
import torch.distributed as dist
from _clock import faulty, leave, tick
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Work(torch.autograd.Function):
    @staticmethod
    def forward(_, x, seconds):
        begun = time.thread_time()
        while time.thread_time() - begun < seconds:
            pass
        return x.clone()

    @staticmethod
    def backward(_, gradient):
        return gradient, None


class Net(nn.Module):
    def __init__(self, late):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        self.late = late

    def forward(self, x):
        seconds = 0.008 if self.late and faulty() else 0.002
        for layer in self.layers:
            x = torch.relu(Work.apply(layer(x), seconds))
        return x


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Net(late=dist.get_rank() == 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(64, 64)
    for _ in range(80):
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
