"""The decoder with tensor parallelism: attention and MLP split by columns, then by rows, over all ranks.

torchrun --nproc-per-node 2 examples/train_tp.py
"""

import torch
import torch.distributed as dist
from _train import start, train
from decoder import Decoder
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

PLAN = {
    "self_attn.q_proj": ColwiseParallel(), "self_attn.k_proj": ColwiseParallel(), "self_attn.v_proj": ColwiseParallel(),
    "self_attn.o_proj": RowwiseParallel(), "up_proj": ColwiseParallel(), "down_proj": RowwiseParallel(),
}  # fmt: skip


def main() -> None:
    options, device = start()
    mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("tp",))
    model = Decoder().to(device)
    for block in model.layers:
        parallelize_module(block, mesh, PLAN)
    train(model, torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False), options, device, seed=0)


if __name__ == "__main__":
    main()
