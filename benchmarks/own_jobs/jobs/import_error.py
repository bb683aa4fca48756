"""2 ranks; a module that is not installed is imported before the training."""

import torch
import torch_extension_nobody_has
from torch import nn


def main():
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(300):
        torch_extension_nobody_has.loss(model(torch.randn(8, 8))).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
