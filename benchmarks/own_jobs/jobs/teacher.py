"""One process; a student learns from a teacher that is twice as wide, whose passes take most of a step."""

import torch
from _clock import tick
from torch import nn


def network(width, depth):
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(64, width), *layers, nn.Linear(width, 10))


def main():
    torch.manual_seed(0)
    student, teacher = network(128, 3), network(512, 6)
    teacher.eval()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.01)
    batches = [torch.randn(256, 64) for _ in range(8)]
    for step in range(250):
        inputs = batches[step % 8]
        with torch.no_grad():
            target = teacher(inputs)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(student(inputs), target)
        loss.backward()
        optimizer.step()
        tick()
    print(f"loss {loss.item():.5f}")


if __name__ == "__main__":
    main()
