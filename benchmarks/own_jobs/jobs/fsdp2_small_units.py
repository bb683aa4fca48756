"""FSDP2, 2 ranks; every small layer is a unit of its own. --clean: three units. --alone: not sharded, nothing is sent."""

import sys

import torch
import torch.distributed as dist
from _clock import tick
from torch import nn
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(96, 96) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return x


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(*[Block() for _ in range(3)])
    if "--alone" not in sys.argv:
        for block in model:
            if "--clean" not in sys.argv:
                for layer in block.layers:
                    fully_shard(layer)
            fully_shard(block)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(dist.get_rank())
    batches = [torch.randn(1024, 96, generator=generator) for _ in range(8)]
    for step in range(200):
        inputs = batches[step % 8]
        optimizer.zero_grad()
        loss = (model(inputs) - inputs).square().mean()
        loss.backward()
        optimizer.step()
        tick()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
