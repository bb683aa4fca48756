"""DDP, 2 ranks; every 20 steps rank 0 writes a checkpoint and rank 1 waits at a barrier."""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from _clock import leave, tick
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(128, 128), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    history = torch.zeros(16_000_000)
    folder = tempfile.TemporaryDirectory()
    batches = [torch.randn(2048, 128) for _ in range(8)]
    for step in range(1, 301):
        inputs = batches[step % 8]
        optimizer.zero_grad()
        loss = (model(inputs) - inputs).square().mean()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            if dist.get_rank() == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "history": history}
                torch.save(state, Path(folder.name) / "last.pt")
            dist.barrier()
        tick()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.5f}")
    del model, optimizer, loss
    leave()


if __name__ == "__main__":
    main()
