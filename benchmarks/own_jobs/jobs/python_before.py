"""One process; the loop itself turns records into numbers, in Python, before every forward pass. --clean: one batch."""

import torch
from _clock import faulty, tick
from torch import nn

RECORDS = [{"id": n, "tags": [n % 7, n % 11, n % 13], "text": f"record {n} of many"} for n in range(400)]


def features(records):
    rows = []
    for record in records:
        row = [0.0] * 32
        for letter in record["text"]:
            row[ord(letter) % 32] += 1.0
        for tag in record["tags"]:
            row[tag] -= 0.5
        total = sum(abs(value) for value in row)
        rows.append([value / total for value in row])
    return torch.tensor(rows)


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    inputs = None
    for _ in range(300):
        if inputs is None or faulty():
            inputs = features(RECORDS)
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        tick()
    print(f"loss {loss.item():.5f}")


if __name__ == "__main__":
    main()
