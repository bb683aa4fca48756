"""DDP, 2 ranks; the sequences of rank 1 are longer than those of rank 0. --clean: both have the same lengths."""

import torch
import torch.distributed as dist
from _clock import faulty, leave, tick
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(1000, 128)
        self.up, self.down, self.head = nn.Linear(128, 512), nn.Linear(512, 128), nn.Linear(128, 200)

    def forward(self, tokens):
        x = self.embed(tokens)
        x = x + self.down(torch.relu(self.up(x)))
        return self.head(x)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(1)
    for _ in range(300):
        shortest = int(torch.randint(40, 49, (1,), generator=generator))
        length = shortest + 24 if dist.get_rank() == 1 and faulty() else shortest
        tokens = torch.randint(0, 1000, (16, length), generator=generator)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten() % 200)
        loss.backward()
        optimizer.step()
        tick()
    if dist.get_rank() == 0:
        print(f"trained, loss below 6: {loss.item() < 6}")
    del model, optimizer, loss
    leave()


if __name__ == "__main__":
    main()
