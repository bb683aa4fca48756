"""Floating-point operations of operators: as the profiler recorded them, else from the shapes of its inputs.

A multiply-add counts 2. From shapes only matrix products are known; torch 2.13 computes FLOP (``with_flops``) for its
own tables but writes none to the trace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.traces.events import NONE, Category, Events

Ints = NDArray[np.int64]
Dims = list[list[int]]

UNKNOWN = -1


def _product(values: list[int]) -> int:
    total = 1
    for v in values:
        total *= v
    return total


def _mm(dims: Dims) -> int:
    (m, k), (_, n) = dims[0], dims[1]
    return 2 * m * k * n


def _addmm(dims: Dims) -> int:
    return _mm(dims[1:])


def _bmm(dims: Dims) -> int:
    (b, m, k), (_, _, n) = dims[0], dims[1]
    return 2 * b * m * k * n


def _baddbmm(dims: Dims) -> int:
    return _bmm(dims[1:])


def _mv(dims: Dims) -> int:
    return 2 * _product(dims[0])


def _addmv(dims: Dims) -> int:
    return _mv(dims[1:])


def _dot(dims: Dims) -> int:
    return 2 * dims[0][0]


MATRIX_PRODUCTS: dict[str, Callable[[Dims], int]] = {
    "aten::mm": _mm,
    "aten::addmm": _addmm,
    "aten::_addmm_activation": _addmm,
    "aten::_scaled_mm": _mm,
    "aten::bmm": _bmm,
    "aten::baddbmm": _baddbmm,
    "aten::mv": _mv,
    "aten::addmv": _addmv,
    "aten::dot": _dot,
}
"""FLOP from the dimensions of the inputs. Operators that only call one of these (aten::matmul, aten::linear) have
none of their own: nothing is counted twice.
"""

NOT_FROM_SHAPES = (
    "convolution", "conv2d", "conv3d", "scaled_dot_product", "_flash_attention", "_efficient_attention",
    "miopen", "cudnn_rnn", "lstm", "gru",
)  # fmt: skip
"""Parts of names of operators that multiply matrices in ways that the shapes alone do not tell (stride, causal)."""


def flop_by_event(events: Events, indices: NDArray[np.integer[Any]]) -> tuple[Ints, str | None, str | None]:
    """FLOP of each of these events, shape of ``indices``, UNKNOWN where not known; where from; why not at all.

    As recorded when any event has a record (an operator without one then has none of its own: 0), else from shapes.
    """
    result = np.full(len(indices), UNKNOWN, dtype=np.int64)
    if events.flop:
        result[:] = 0
        table = np.zeros(len(events), dtype=np.int64)
        table[list(events.flop)] = list(events.flop.values())
        return table[indices], "recorded", None
    if not len(events.shapes):
        return result, None, "the trace has neither FLOP nor input shapes (record_shapes=True records those)"
    products = {c: MATRIX_PRODUCTS[n] for c, n in enumerate(events.names) if n in MATRIX_PRODUCTS}
    names, shapes = events.name[indices], events.shape[indices]
    chosen = np.flatnonzero(np.isin(names, list(products)) & (shapes != NONE))
    if not len(chosen):
        return result, None, "no matrix product with recorded shapes"
    pairs, inverse = np.unique(
        names[chosen].astype(np.int64) * len(events.shapes) + shapes[chosen], return_inverse=True
    )
    values = [
        _count(products[int(p) // len(events.shapes)], events.shapes[int(p) % len(events.shapes)].dims) for p in pairs
    ]
    result[chosen] = np.array(values, dtype=np.int64)[inverse]
    return result, "shapes", None


def uncounted_products(events: Events) -> tuple[str, ...]:
    """Names of the operators in the trace whose FLOP neither a record nor their shapes tell."""
    if events.flop:
        return ()
    used = np.unique(events.name[events.category == Category.CPU_OP])
    names = (events.names[c] for c in used.tolist())
    return tuple(sorted(n for n in names if n.startswith("aten::") and any(part in n for part in NOT_FROM_SHAPES)))


def _count(formula: Callable[[Dims], int], text: str) -> int:
    try:
        dims = msgspec.json.decode(text, type=Dims)
        return formula(dims)
    except (msgspec.MsgspecError, ValueError, IndexError, TypeError):
        # Tensor lists and odd arguments: the profiler writes what it gets.
        return UNKNOWN
