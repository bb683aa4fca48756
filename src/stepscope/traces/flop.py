"""Floating-point operations of operators: as the profiler recorded them, else from the shapes of its inputs.

A multiply-add counts 2. From shapes matrix products, fused attention and convolutions are known; torch 2.13 computes
FLOP (``with_flops``) for its own tables but writes none to the trace.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.stats.spans import distinct
from stepscope.traces.events import NONE, WITH_VALUES, Category, Events

Ints = NDArray[np.int64]
Dims = list[list[int]]

UNKNOWN = -1


def _mm(dims: Dims) -> int:
    (m, k), (_, n) = dims[0], dims[1]
    return 2 * m * k * n


def _bmm(dims: Dims) -> int:
    (b, m, k), (_, _, n) = dims[0], dims[1]
    return 2 * b * m * k * n


def _mv(dims: Dims) -> int:
    return 2 * prod(dims[0])


def _added_to(product: Callable[[Dims], int]) -> Callable[[Dims], int]:
    """Of a product whose first input is what it is added to."""
    return lambda dims: product(dims[1:])


def _dot(dims: Dims) -> int:
    return 2 * dims[0][0]


MATRIX_PRODUCTS: dict[str, Callable[[Dims], int]] = {
    "aten::mm": _mm,
    "aten::addmm": _added_to(_mm),
    "aten::_addmm_activation": _added_to(_mm),
    "aten::_scaled_mm": _mm,
    "aten::bmm": _bmm,
    "aten::baddbmm": _added_to(_bmm),
    "aten::mv": _mv,
    "aten::addmv": _added_to(_mv),
    "aten::dot": _dot,
}
"""FLOP from the dimensions of the inputs. Operators that only call one of these (aten::matmul, aten::linear) have
none of their own: nothing is counted twice.
"""

Values = list[str]
"""What the profiler writes of inputs that are no tensors: ``["", "", "[2, 2]", "True"]``."""


def _attention(first: int, causal: int, products: float) -> Callable[[Dims, Values], int]:
    """first: the query's place among the inputs; causal: that of ``is_causal``; products: of one S x S x D each.

    A causal mask leaves half, as in ``workloads._common.attention_flops``.
    """

    def count(dims: Dims, values: Values) -> int:
        query, key, value = dims[first : first + 3]
        share = {"True": 0.5, "False": 1.0}[values[causal]]
        each = 2 * prod(query[:-1]) * key[-2]
        return round(share * products / 2 * each * (query[-1] + value[-1]))

    return count


FORWARD, BACKWARD = 2, 5
"""Products of fused attention: QK^T and PV; backward computes QK^T again, then the gradients of P, V, Q and K."""


def _convolution(dims: Dims, values: Values) -> int:
    image, weight = dims[0], dims[1]
    if values[6] != "False":
        return 2 * prod(image) * prod(weight[1:])  # transposed: every input element meets the whole kernel
    out: list[int] = [
        (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
        for size, kernel, stride, pad, dilation in zip(
            image[2:], weight[2:], *(_as_long_as(image, values[n]) for n in (3, 4, 5)), strict=True
        )
    ]
    return 2 * image[0] * prod(out) * prod(weight)


def _as_long_as(image: list[int], text: str) -> list[int]:
    found: list[int] = msgspec.json.decode(text, type=list[int])
    return found * (len(image) - 2) if len(found) == 1 else found


def _convolution_backward(dims: Dims, values: Values) -> int:
    """A product of the forward pass's size for the input's gradient and one for the weight's, where they are asked for."""
    gradient, image, weight = dims[:3]
    wanted = msgspec.json.decode(values[10].lower(), type=list[bool])
    whole = image if values[7] != "False" else gradient
    return 2 * prod(whole) * prod(weight[1:]) * sum(wanted[:2])


_SDP = "aten::_scaled_dot_product"
WITH_SCALARS: dict[str, Callable[[Dims, Values], int]] = {
    f"{_SDP}_flash_attention": _attention(0, 4, FORWARD),
    f"{_SDP}_flash_attention_backward": _attention(1, 11, BACKWARD),
    f"{_SDP}_flash_attention_for_cpu": _attention(0, 4, FORWARD),
    f"{_SDP}_flash_attention_for_cpu_backward": _attention(1, 7, BACKWARD),
    f"{_SDP}_efficient_attention": _attention(0, 6, FORWARD),
    f"{_SDP}_efficient_attention_backward": _attention(1, 11, BACKWARD),
    f"{_SDP}_cudnn_attention": _attention(0, 6, FORWARD),
    f"{_SDP}_cudnn_attention_backward": _attention(1, 14, BACKWARD),
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
}
"""FLOP from dimensions and the other inputs (torch 2.13, native_functions.yaml)."""

assert WITH_SCALARS.keys() == WITH_VALUES

NOT_FROM_SHAPES = (
    "convolution", "conv2d", "conv3d", "scaled_dot_product", "_flash_attention", "_efficient_attention",
    "miopen", "cudnn_rnn", "lstm", "gru",
)  # fmt: skip
"""Parts of names of operators that multiply matrices in ways that the shapes alone do not tell."""

_FAMILIES = (("conv", ("aten::convolution", "aten::convolution_backward")), ("attention", tuple(
    name for name in WITH_SCALARS if name.startswith(_SDP)
)))  # fmt: skip
"""Part of a name, and the operators inside or around it that are counted in its place."""


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
    counted = _with_scalars(events)
    if counted:
        table = np.full(len(events), UNKNOWN, dtype=np.int64)
        table[list(counted)] = list(counted.values())
        result[:] = table[indices]
    chosen = np.flatnonzero(np.isin(names, list(products)) & (shapes != NONE))
    if not len(chosen) and not (result > 0).any():
        return result, None, "no matrix product with recorded shapes"
    if not len(chosen):
        return result, "shapes", None
    pairs, inverse = np.unique(
        names[chosen].astype(np.int64) * len(events.shapes) + shapes[chosen], return_inverse=True
    )
    values = [
        _count(products[int(p) // len(events.shapes)], events.shapes[int(p) % len(events.shapes)].dims) for p in pairs
    ]
    result[chosen] = np.array(values, dtype=np.int64)[inverse]
    return result, "shapes", None


def _with_scalars(events: Events) -> dict[int, int]:
    """FLOP of the events whose other inputs are recorded; UNKNOWN where those are odd."""
    found: dict[int, int] = {}
    known: dict[tuple[str, str, str], int] = {}
    for index, text in events.values.items():
        shape = int(events.shape[index])
        if shape == NONE:
            continue
        key = events.name_of(index), events.shapes[shape].dims, text
        if key not in known:
            known[key] = _count_with_scalars(*key)
        found[index] = known[key]
    return found


def _count_with_scalars(name: str, dims: str, values: str) -> int:
    try:
        told = msgspec.json.decode(dims, type=list[Any])
        return WITH_SCALARS[name](told, msgspec.json.decode(values, type=Values))
    except (msgspec.MsgspecError, ValueError, IndexError, KeyError, TypeError):
        return UNKNOWN


def uncounted_products(events: Events) -> tuple[str, ...]:
    """Names of the operators in the trace whose FLOP neither a record nor their shapes tell."""
    if events.flop:
        return ()
    used = {events.names[c] for c in distinct(events.name[events.category == Category.CPU_OP]).tolist()}
    counted = _with_scalars(events)
    odd = {events.name_of(index) for index, flop in counted.items() if flop == UNKNOWN}
    told = {events.name_of(index) for index in counted} - odd
    silent = [name for name in used & WITH_SCALARS.keys() if name not in told]
    good = [part for part, family in _FAMILIES if told & set(family) and not set(silent) & set(family)]
    return tuple(
        sorted(
            n
            for n in used
            if n.startswith("aten::")
            and any(part in n for part in NOT_FROM_SHAPES)
            and not any(part in n for part in good)
        )
    )


def _count(formula: Callable[[Dims], int], text: str) -> int:
    try:
        dims = msgspec.json.decode(text, type=Dims)
        return formula(dims)
    except (msgspec.MsgspecError, ValueError, IndexError, TypeError):
        # Tensor lists and odd arguments: the profiler writes what it gets.
        return UNKNOWN
