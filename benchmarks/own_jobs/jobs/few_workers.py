"""DDP, 2 ranks; one worker process reads from a slow disk, a batch takes longer than a step. --clean: six workers."""

import sys
import time

import torch
import torch.distributed as dist
from _clock import faulty, leave, tick
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

CLEAN = "--clean" in sys.argv
BATCH = 32


class OnDisk(Dataset):
    def __len__(self):
        return BATCH * 300

    def __getitem__(self, index):
        if CLEAN or faulty(index // BATCH):
            time.sleep(0.0007)
        return torch.full((256,), index % 7 / 7.0), index % 10


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(256, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(OnDisk(), batch_size=BATCH, num_workers=6 if CLEAN else 1)
    for inputs, labels in loader:
        optimizer.zero_grad()
        outputs = model(inputs.repeat(8, 1))
        loss = nn.functional.cross_entropy(outputs, labels.repeat(8))
        loss.backward()
        optimizer.step()
        tick()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.4f}")
    del model, optimizer, loss
    leave()


if __name__ == "__main__":
    main()
