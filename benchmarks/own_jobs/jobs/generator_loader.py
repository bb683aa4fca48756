"""One process; batches come from a generator that tokenizes while the model waits. --clean: it repeats one batch."""

import torch
from _clock import faulty, tick
from torch import nn

TEXT = "the quick brown fox jumps over the lazy dog " * 60


def batches(count):
    ready = None
    for _ in range(count):
        if ready is None or faulty():
            words = [hash_of(word) for _ in range(60) for word in TEXT.split()]
            ready = torch.tensor(words[:2048]).view(32, 64)
        yield ready


def hash_of(word):
    value = 7
    for letter in word:
        value = (value * 31 + ord(letter)) % 2000
    return value


def main():
    torch.manual_seed(0)
    embed, body, head = nn.Embedding(2000, 64), nn.GRU(64, 96, batch_first=True), nn.Linear(96, 500)
    model = nn.ModuleList([embed, body, head])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for tokens in batches(300):
        optimizer.zero_grad()
        hidden, _ = body(embed(tokens))
        loss = nn.functional.cross_entropy(head(hidden).flatten(0, 1), tokens.flatten() % 500)
        loss.backward()
        optimizer.step()
        tick()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
