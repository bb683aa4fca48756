"""Models for `stepscope bench --model`: what a function of yours may return.

stepscope bench --model models:cnn --batch 32
"""

import torch
from decoder import Decoder
from torch import nn


class Residual(nn.Module):
    """Two convolutions around a short cut, as in torchvision's ResNet."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.downsample = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(out)) + self.downsample(x))


def cnn(width: int = 32) -> dict[str, object]:
    """A convolutional network with batches of images; the loss and the optimizer are stepscope's."""
    layers = [Residual(3, width, 1), Residual(width, 2 * width, 2), Residual(2 * width, 4 * width, 2)]
    module = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10))

    def batch(size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        images = torch.randn(size, 3, 32, 32, generator=generator)
        return images, torch.randint(10, (size,), generator=generator)

    return {"module": module, "batch": batch}


def decoder(width: int = 128, layers: int = 4) -> dict[str, object]:
    """A decoder with its own loss and optimizer: every token is predicted from those before it."""

    def batch(size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = torch.randint(2048, (size, 64), generator=generator)
        return tokens, tokens

    def loss(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

    return {
        "module": Decoder(width=width, layers=layers), "batch": batch, "loss": loss,
        "optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    }  # fmt: skip
