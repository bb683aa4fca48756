"""DDP, 4 ranks whose work is mostly a wait of fixed length (as for a device); rank 2 takes 40 % longer. --clean: no."""

import time

import torch
import torch.distributed as dist
from _clock import faulty, leave, tick
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class OnDevice(torch.autograd.Function):
    @staticmethod
    def forward(_, x, seconds):
        time.sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(_, gradient):
        return gradient, None


class Net(nn.Module):
    def __init__(self, slow):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        self.slow = slow

    def forward(self, x):
        seconds = 0.042 if self.slow and faulty() else 0.030
        for layer in self.layers:
            x = torch.relu(OnDevice.apply(layer(x), seconds / 4))
        return x


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Net(slow=dist.get_rank() == 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(64, 64)
    for _ in range(250):
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
