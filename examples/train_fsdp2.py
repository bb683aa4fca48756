"""The decoder sharded with FSDP2 (fully_shard), one unit a block.

torchrun --nproc-per-node 2 examples/train_fsdp2.py
"""

import torch
import torch.distributed as dist
from _train import start, train
from decoder import Decoder
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main() -> None:
    options, device = start()
    mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("dp",))
    model = Decoder().to(device)
    for block in model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    train(model, torch.optim.AdamW(model.parameters(), lr=1e-3), options, device, seed=dist.get_rank())


if __name__ == "__main__":
    main()
