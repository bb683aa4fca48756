"""One process; the loader decodes every sample in the training process. --clean: samples are decoded once, before."""

import torch
from _clock import faulty, tick
from torch import nn
from torch.utils.data import DataLoader, Dataset


def decode(index):
    generator = torch.Generator().manual_seed(index % 32)
    image = torch.randn(3, 48, 48, generator=generator)
    for _ in range(6):
        image = torch.nn.functional.avg_pool2d(image[None], 3, stride=1, padding=1)[0]
    return image.flatten()[:1024]


class Pictures(Dataset):
    def __init__(self):
        self.ready = [decode(index) for index in range(32)]

    def __len__(self):
        return 16 * 400

    def __getitem__(self, index):
        return (decode(index) if faulty() else self.ready[index % 32]), index % 10


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    head = torch.randn(512, 512)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for pictures, labels in DataLoader(Pictures(), batch_size=16):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(pictures), labels)
        for _ in range(3):
            loss = loss + (head @ head).mean() * 0
        loss.backward()
        optimizer.step()
        tick()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
