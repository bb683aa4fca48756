"""The same gradients as DDP, the slow way: backward first, then one all-reduce for each parameter, one after another.

torchrun --nproc-per-node 2 examples/train_naive.py
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import record_function


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(8)]).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(dist.get_rank())
    loss = torch.zeros(())
    for _ in range(options.steps):
        inputs = torch.randn(64, 512, generator=generator).to(device)
        optimizer.zero_grad()
        with record_function("forward"):
            loss = model(inputs).square().mean()
        with record_function("backward"):
            loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
