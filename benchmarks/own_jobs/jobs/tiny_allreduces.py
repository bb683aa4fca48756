"""DDP, 2 ranks; forty metrics of every step are reduced one by one. --clean: none is."""

import torch
import torch.distributed as dist
from _clock import faulty, leave, tick
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(128, 128), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(dist.get_rank())
    batches = [torch.randn(768, 128, generator=generator) for _ in range(8)]
    for step in range(300):
        inputs = batches[step % 8]
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = (outputs - inputs).square().mean()
        loss.backward()
        optimizer.step()
        metrics = [outputs[:, column].detach().mean() for column in range(40)]
        for metric in metrics:
            if faulty():
                dist.all_reduce(metric)
        tick()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.5f}")
    del model, optimizer, loss
    leave()


if __name__ == "__main__":
    main()
