"""The protocol between a strategy and the train loop."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from torch import nn


class Session(Protocol):
    """One open strategy around one module, for the life of a cell.

    The train loop, for each optimizer step::

        for every micro-step:
            with session.micro_step(last=...):          # reductions may start only when last
                loss = sum(sample losses) / global samples of the window * session.loss_factor
                loss.backward()
        session.finish()        # on return every param.grad holds the sum over ranks, usable by the optimizer
        optimizer.step()
        session.zero_grad()

    trainable: call this for the forward pass (the module or its wrapper).
    loss_factor: 1 when gradients are summed over ranks, world size when the strategy averages them (DDP).
    """

    trainable: nn.Module
    loss_factor: float

    def micro_step(self, *, last: bool) -> AbstractContextManager[None]: ...

    def finish(self) -> None: ...

    def zero_grad(self) -> None: ...

    def close(self) -> None:
        """Remove hooks and wrappers; the module is plain again."""
        ...
