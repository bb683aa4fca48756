"""DDP, 2 ranks; every 25 steps both evaluate on 36 batches."""

import torch
import torch.distributed as dist
from _clock import leave, tick
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def evaluate(model, batches):
    model.eval()
    with torch.no_grad():
        total = sum((model(batch) - batch).square().mean().item() for batch in batches)
    model.train()
    return total / len(batches)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(128, 128), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    validation = [torch.randn(2048, 128) for _ in range(36)]
    quality = 0.0
    batches = [torch.randn(2048, 128) for _ in range(8)]
    for step in range(1, 301):
        inputs = batches[step % 8]
        optimizer.zero_grad()
        loss = (model(inputs) - inputs).square().mean()
        loss.backward()
        optimizer.step()
        if step % 25 == 0:
            quality = evaluate(model, validation)
        tick()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.5f}, evaluated {quality:.5f}")
    del model, optimizer, loss
    leave()


if __name__ == "__main__":
    main()
