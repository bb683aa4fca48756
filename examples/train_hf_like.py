"""A decoder trained with DDP, or by one process where no launcher started several.

torchrun --nproc-per-node 2 examples/train_hf_like.py
"""

import torch
import torch.distributed as dist
from _train import start, train
from decoder import Decoder
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    options, device = start()
    model = Decoder().to(device)
    rank = dist.get_rank() if dist.is_initialized() else 0
    wrapped = DistributedDataParallel(model) if dist.is_initialized() else model
    train(wrapped, torch.optim.AdamW(wrapped.parameters(), lr=1e-3), options, device, seed=rank)


if __name__ == "__main__":
    main()
