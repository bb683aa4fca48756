"""One process, a generator and a discriminator with an optimizer each; nothing is planted."""

import torch
from _clock import tick
from torch import nn


def net(first, last):
    return nn.Sequential(
        nn.Linear(first, 256), nn.LeakyReLU(0.2), nn.Linear(256, 256), nn.LeakyReLU(0.2), nn.Linear(256, last)
    )


def main():
    torch.manual_seed(0)
    maker, judge = net(64, 128), net(128, 1)
    of_maker = torch.optim.Adam(maker.parameters(), lr=2e-4)
    of_judge = torch.optim.Adam(judge.parameters(), lr=2e-4)
    score = nn.functional.binary_cross_entropy_with_logits
    yes, no = torch.ones(384, 1), torch.zeros(384, 1)
    pictures, noise = torch.randn(8, 384, 128), torch.randn(8, 384, 64)
    for step in range(300):
        real = pictures[step % 8]
        made = maker(noise[step % 8])
        of_judge.zero_grad()
        loss = score(judge(real), yes) + score(judge(made.detach()), no)
        loss.backward()
        of_judge.step()
        of_maker.zero_grad()
        score(judge(made), yes).backward()
        of_maker.step()
        tick()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
