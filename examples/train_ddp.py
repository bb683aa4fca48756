"""Data-parallel training of a small convolutional network. Nothing here knows of stepscope.

torchrun --nproc-per-node 2 examples/train_ddp.py
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    torch.manual_seed(0)
    images, labels = torch.randn(options.steps * options.batch * dist.get_world_size(), 3, 16, 16), None
    labels = torch.randint(0, 10, (len(images),))
    data = TensorDataset(images, labels)
    loader = DataLoader(data, batch_size=options.batch, sampler=DistributedSampler(data, shuffle=False), num_workers=0)
    trained = DistributedDataParallel(model().to(device))
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.01, momentum=0.9)
    loss = torch.zeros(())
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(trained(inputs.to(device)), targets.to(device))
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
