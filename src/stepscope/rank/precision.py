"""How a cell computes: storage dtype, autocast, loss scaling, and the TF32 switches.

Tensors in tuples, lists and mappings: what a user's batch is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from stepscope.core.errors import UsageError
from stepscope.records import precision as formats


def samples_in(nest: Any) -> int:
    """Return the first dimension of the first tensor in a tensor, tuple or mapping. Raises UsageError where there is
    none."""
    for tensor in tensors_of(nest):
        if tensor.dim():
            return int(tensor.shape[0])
    raise UsageError(
        "a batch without a tensor that has a first dimension", fix="batch returns (inputs, targets) of tensors"
    )


def tensors_of(nest: Any) -> list[Tensor]:
    """Return all tensors in a nest of tuples, lists and mappings, in order."""
    if isinstance(nest, Tensor):
        return [nest]
    parts = nest.values() if isinstance(nest, Mapping) else nest if isinstance(nest, tuple | list) else ()
    return [tensor for part in parts for tensor in tensors_of(part)]


def mapped(change: Callable[[Tensor], Tensor], nest: Any) -> Any:
    """Return the nest with every tensor changed."""
    if isinstance(nest, Tensor):
        return change(nest)
    if isinstance(nest, Mapping):
        return {name: mapped(change, part) for name, part in nest.items()}
    return type(nest)(mapped(change, part) for part in nest) if type(nest) in (tuple, list) else nest


AUTOCAST_DTYPE = {"amp_bf16": torch.bfloat16, "amp_fp16": torch.float16}


class Numerics:
    """One precision at work. Holds the loss scale and, until ``close``, the process's TF32 switches.

    For each optimizer step::

        with numerics.autocast(): loss = ...        # forward pass of each micro-step
        numerics.backward(loss)
        session.finish()                            # every rank now has the same gradients
        numerics.step(optimizer, clip=...)

    ``step`` looks for overflow only there, after the reduction: all ranks see the same infinities, so they skip
    the step and lower the scale together.
    """

    def __init__(self, precision: str, device: torch.device) -> None:
        self.device = device
        self.parameter_dtype: torch.dtype = getattr(torch, formats.parameter_dtype(precision))
        self._autocast_dtype = AUTOCAST_DTYPE.get(precision)
        self._scaler = torch.amp.GradScaler(device.type, enabled=precision == "amp_fp16")
        self._switches = _read_tf32_switches()
        _write_tf32_switches(_switched_values(self._switches, on=precision == "tf32"))

    def prepare(self, module: nn.Module) -> nn.Module:
        """Put ``module`` on the device and into the storage dtype, in place; return it."""
        return module.to(device=self.device, dtype=self.parameter_dtype)

    def inputs(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Return a batch as the module wants it: floating-point inputs in the storage dtype, targets untouched."""
        return mapped(lambda t: t.to(self.parameter_dtype) if t.is_floating_point() else t, x), y

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context for the forward pass and the loss."""
        if self._autocast_dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self._autocast_dtype)

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass of one micro-step, of the scaled loss where there is a scale."""
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def step(self, optimizer: torch.optim.Optimizer, *, clip: Callable[[], None] | None = None) -> None:
        """Unscale, let ``clip`` scale the gradients down and update; after an overflow the update is left out."""
        self._scaler.unscale_(optimizer)
        if clip is not None:
            clip()
        self._scaler.step(optimizer)
        self._scaler.update()

    def close(self) -> None:
        """Put the TF32 switches back as they were."""
        _write_tf32_switches(self._switches)


def _tf32_owners() -> list[tuple[Any, str]]:
    """Return where torch keeps its TF32 switches: an object and the attribute's name.

    torch 2.9 brought ``fp32_precision``; it warns about the older ``allow_tf32``, which releases before need.
    """
    cudnn: Any = torch.backends.cudnn
    if hasattr(cudnn, "conv"):
        return [(owner, "fp32_precision") for owner in (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)]
    return [(owner, "allow_tf32") for owner in (torch.backends.cuda.matmul, cudnn)]


def _read_tf32_switches() -> list[Any]:
    return [getattr(owner, name) for owner, name in _tf32_owners()]


def _write_tf32_switches(values: list[Any]) -> None:
    for (owner, name), value in zip(_tf32_owners(), values, strict=True):
        setattr(owner, name, value)


def _switched_values(like: list[Any], *, on: bool) -> list[Any]:
    named = "tf32" if on else "ieee"
    return [on if isinstance(value, bool) else named for value in like]
