"""Tensors in tuples, lists and mappings: what a user's batch is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from stepscope.core.errors import UsageError


def samples_in(nest: Any) -> int:
    """First dimension of the first tensor in a tensor, tuple or mapping. Raises UsageError where there is none."""
    for tensor in tensors_of(nest):
        if tensor.dim():
            return int(tensor.shape[0])
    raise UsageError(
        "a batch without a tensor that has a first dimension", fix="batch returns (inputs, targets) of tensors"
    )


def tensors_of(nest: Any) -> list[Tensor]:
    """All tensors in a nest of tuples, lists and mappings, in order."""
    if isinstance(nest, Tensor):
        return [nest]
    parts = nest.values() if isinstance(nest, Mapping) else nest if isinstance(nest, tuple | list) else ()
    return [tensor for part in parts for tensor in tensors_of(part)]


def mapped(change: Callable[[Tensor], Tensor], nest: Any) -> Any:
    """The nest with every tensor changed."""
    if isinstance(nest, Tensor):
        return change(nest)
    if isinstance(nest, Mapping):
        return {name: mapped(change, part) for name, part in nest.items()}
    return type(nest)(mapped(change, part) for part in nest) if type(nest) in (tuple, list) else nest
