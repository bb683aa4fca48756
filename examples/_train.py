"""What the training scripts of this folder share: ranks, tokens, the loop."""

import argparse
import os
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn


def start() -> tuple[argparse.Namespace, torch.device]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if on_gpu else "gloo")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if on_gpu else torch.device("cpu")
    torch.manual_seed(0)
    return options, device


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, options: argparse.Namespace, device: torch.device,
    *, seed: int, after_backward: Callable[[], None] = lambda: None,
) -> None:  # fmt: skip
    """Next-token prediction on random tokens. seed: ranks that share a batch have the same."""
    generator = torch.Generator().manual_seed(seed)
    loss = torch.zeros(())
    for _ in range(options.steps):
        tokens = torch.randint(0, 2048, (options.batch, 64), generator=generator).to(device)
        optimizer.zero_grad()
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        after_backward()
        optimizer.step()
    if not dist.is_initialized() or dist.get_rank() == 0:
        print(f"loss {loss.item():.6f}")
    if dist.is_initialized():
        dist.destroy_process_group()
