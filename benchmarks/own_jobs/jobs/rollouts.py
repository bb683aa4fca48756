"""One process; a policy acts 64 times without gradients, in train mode, before every 16th update. --each: 16 times before
every one."""

import sys

import torch
from _clock import tick
from torch import nn

EACH = "--each" in sys.argv


def act(policy, state, times):
    seen = []
    with torch.no_grad():
        for _ in range(times):
            state = torch.tanh(policy(state)) + 0.01
            seen.append(state)
    return torch.cat(seen)


def main():
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.Tanh())]
    policy = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-4)
    state = torch.randn(128, 256)
    for step in range(320):
        if EACH:
            seen = act(policy, state, 16)
        elif step % 16 == 0:
            seen = act(policy, state, 64)
        batch = seen[: 8 * 128]
        optimizer.zero_grad()
        loss = (policy(batch) - batch).square().mean()
        loss.backward()
        optimizer.step()
        tick()
    print(f"loss {loss.item():.5f}")


if __name__ == "__main__":
    main()
