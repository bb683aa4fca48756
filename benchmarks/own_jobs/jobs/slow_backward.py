"""DDP, 2 ranks; rank 0 does more work in the backward pass only (an autograd function). --clean: it does not."""

import torch
import torch.distributed as dist
from _clock import faulty, leave, tick
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Extra(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(weight)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        (weight,) = ctx.saved_tensors
        gradient @ weight
        return gradient, None


class Net(nn.Module):
    def __init__(self, slow):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(6))
        self.slow = slow

    def forward(self, x):
        slow = self.slow and faulty()
        for layer in self.layers:
            x = torch.relu(layer(x))
            if slow:
                x = Extra.apply(x, layer.weight.detach())
        return x


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Net(slow=dist.get_rank() == 0))
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
