"""Recorded inputs of a communication call (``Input Dims``, ``Input type``) -> dtype and bytes of its buffers."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import msgspec

from stepscope.core.dataclass import dataclass
from stepscope.traces.collective_names import DTYPE_BYTES, dtype_named
from stepscope.traces.events import Shapes

_WHOLE_IS_INPUT_TIMES_RANKS = ("all_gather", "gather")
_WHOLE_IS_OUTPUT_TIMES_RANKS = ("reduce_scatter", "scatter")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Elements of the first two inputs (a list counts as the sum of its tensors); None where there is no tensor."""

    first: int | None
    second: int | None
    dtype: str | None


@lru_cache(maxsize=4096)
def inputs_of(shapes: Shapes) -> Inputs:
    """Read one operator's recorded inputs; text that is no list of shapes tells nothing."""
    try:
        dims, types = msgspec.json.decode(shapes.dims), msgspec.json.decode(shapes.types or "[]")
    except msgspec.DecodeError:
        return Inputs(first=None, second=None, dtype=None)
    if not isinstance(dims, list) or not isinstance(types, list):
        return Inputs(first=None, second=None, dtype=None)
    types += [""] * (len(dims) - len(types))
    counts = [_elements(d, t) for d, t in zip(dims, types, strict=False)][:2]
    dtype = next((known for t in types[:2] if (known := dtype_named(str(t)))), None)
    return Inputs(first=counts[0] if counts else None, second=counts[1] if len(counts) > 1 else None, dtype=dtype)


def _elements(dims: Any, kind: Any) -> int | None:
    """A 0-dimensional tensor and a missing one are both ``[]``: the type tells them apart."""
    if not isinstance(dims, list):
        return None
    if not dims:
        return 1 if dtype_named(str(kind)) else None
    if isinstance(dims[0], list):
        return sum(math.prod(d) for d in dims if _is_shape(d))
    return math.prod(dims) if _is_shape(dims) else None


def _is_shape(dims: Any) -> bool:
    return isinstance(dims, list) and all(isinstance(n, int) for n in dims)


def whole_of_launch(op: str, inputs: Inputs, ranks: int | None) -> int | None:
    """Elements of S from the inputs of a ``c10d::`` operator, whose outputs come first; None when not recorded.

    Lists of lists are not recorded: there the whole is a part times the group's size.
    """
    first, second = inputs.first, inputs.second
    if op in _WHOLE_IS_INPUT_TIMES_RANKS:
        return first if first is not None else _times(second, ranks)
    if op in _WHOLE_IS_OUTPUT_TIMES_RANKS:
        return second if second is not None else _times(first, ranks)
    if op in ("all_to_all", "all_to_all_v"):
        return max((n for n in (first, second) if n is not None), default=None)
    return first


def whole_of_span(op: str, inputs: Inputs, ranks: int | None) -> int | None:
    """Elements of S from a backend's own span (``nccl:*``, ``gloo:*``), which records its inputs alone."""
    if op in _WHOLE_IS_INPUT_TIMES_RANKS:
        return _times(inputs.first, ranks)
    return inputs.first if op != "scatter" else None


def sized(elements: int | None, dtype: str | None) -> int | None:
    """Bytes; None when either is unknown."""
    return None if elements is None or dtype is None else elements * DTYPE_BYTES[dtype]


def _times(elements: int | None, ranks: int | None) -> int | None:
    return None if elements is None or ranks is None else elements * ranks
