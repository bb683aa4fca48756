"""Tensor and sequence parallel (norms on a part of the sequence), 2 ranks; nothing is planted."""

import torch
import torch.distributed as dist
from _clock import tick
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)  # fmt: skip


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(128, 1024), nn.Linear(1024, 128)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(128), Mlp()

    def forward(self, x):
        return self.mlp(self.norm(x))


PLAN = {
    "norm": SequenceParallel(),
    "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Shard(1),)),
    "mlp.up": ColwiseParallel(input_layouts=Shard(1)),
    "mlp.down": RowwiseParallel(output_layouts=Shard(1)),
}


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    model = nn.Sequential(*[Block() for _ in range(2)])
    for block in model:
        parallelize_module(block, mesh, PLAN)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    generator = torch.Generator().manual_seed(dist.get_rank())
    batches = [torch.randn(8, 64, 128, generator=generator) for _ in range(8)]
    for step in range(200):
        inputs = batches[step % 8]
        optimizer.zero_grad()
        loss = (model(inputs) - inputs).square().mean()
        loss.backward()
        optimizer.step()
        tick()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
