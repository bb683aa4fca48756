"""One process that profiles itself from its first step to its last, and waits for its data. --clean: the data is there."""

import time

import torch
from _clock import faulty, tick
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 16 * 300

    def __getitem__(self, index):
        if faulty():
            time.sleep(0.0005)
        return torch.full((64, 128), index % 5 / 5.0)


def main():
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(128, 128), nn.ReLU())]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=0, warmup=0, active=100)) as own:
        for inputs in DataLoader(Slow(), batch_size=16):
            optimizer.zero_grad()
            loss = (model(inputs) - inputs).square().mean()
            loss.backward()
            optimizer.step()
            own.step()
            tick()
    print(f"loss {loss.item():.5f}, operators {len(own.key_averages()) > 0}")


if __name__ == "__main__":
    main()
