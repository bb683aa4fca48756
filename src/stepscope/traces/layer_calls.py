"""Calls of linear layers, embeddings and fused attention by the shapes of their weights, from recorded inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from stepscope.core.dataclass import dataclass
from stepscope.traces.events import Category, Events

LINEAR, ADDMM, EMBEDDING = "aten::linear", "aten::addmm", "aten::embedding"
ATTENTION = "aten::scaled_dot_product_attention"
_FUSED = "aten::_scaled_dot_product_"

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCalls:
    """How often each was called in the trace; a call inside another one of these is not counted.

    linear: by (outputs, inputs) of the weight. embedding: by (rows, width). attention: by shapes of query and key,
    (batch, heads, sequence, width of a head). attention_backward: calls of its backward: fewer where the forward pass is
    recomputed.
    """

    linear: Mapping[tuple[int, int], int]
    embedding: Mapping[tuple[int, int], int]
    attention: Mapping[tuple[Shape, Shape], int]
    attention_backward: int = 0


def layer_calls(events: Events) -> LayerCalls:
    """Of one rank's trace."""
    linear: Counter[tuple[int, int]] = Counter()
    embedding: Counter[tuple[int, int]] = Counter()
    attention: Counter[tuple[Shape, Shape]] = Counter()
    for name, dims in _outermost(events):
        if name == LINEAR and _sized(dims, 1, 2):
            linear[dims[1][0], dims[1][1]] += 1
        elif name == ADDMM and _sized(dims, 2, 2):  # Conv1D of GPT-2: its weight lies the other way round
            linear[dims[2][1], dims[2][0]] += 1
        elif name == EMBEDDING and _sized(dims, 0, 2):
            embedding[dims[0][0], dims[0][1]] += 1
        elif name == ATTENTION and _sized(dims, 0, 4) and _sized(dims, 1, 4):
            attention[tuple(dims[0]), tuple(dims[1])] += 1
    back = events.named(lambda name: name.startswith(_FUSED) and name.endswith("_backward"))
    back &= events.category == Category.CPU_OP
    return LayerCalls(
        linear=linear, embedding=embedding, attention=attention, attention_backward=int(np.count_nonzero(back))
    )


def _outermost(events: Events) -> Iterator[tuple[str, list[Any]]]:
    wanted = events.named(lambda name: name in (LINEAR, ADDMM, EMBEDDING, ATTENTION))
    chosen = np.flatnonzero(wanted & (events.category == Category.CPU_OP) & (events.shape >= 0))
    until: dict[int, int] = {}
    for at in chosen[np.lexsort((-events.dur_ns[chosen], events.ts_ns[chosen]))].tolist():
        thread = int(events.thread[at])
        if events.ts_ns[at] < until.get(thread, -1):
            continue
        until[thread] = int(events.end_ns[at])
        try:
            dims = msgspec.json.decode(events.shapes[int(events.shape[at])].dims)
        except msgspec.DecodeError:
            continue
        if isinstance(dims, list):
            yield events.name_of(at), dims


def _sized(dims: list[Any], place: int, length: int) -> bool:
    """Whether the input at ``place`` is a tensor of so many dimensions."""
    each = dims[place] if place < len(dims) else None
    return isinstance(each, list) and len(each) == length and all(isinstance(n, int) for n in each)
