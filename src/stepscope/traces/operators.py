"""Operators by name: calls, time on the host, and the device work that each one launched.

Floating-point operations of operators: as the profiler recorded them, else from the shapes of its inputs.

A multiply-add counts 2. From shapes matrix products, fused attention and convolutions are known; torch 2.13 computes
FLOP (``with_flops``) for its own tables but writes none to the trace.

Calls of linear layers, embeddings and fused attention by the shapes of their weights, from recorded inputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import dataclass, record
from stepscope.records.trace_work import OperatorRow, OperatorTable
from stepscope.stats.spans import distinct
from stepscope.traces.events import NONE, WITH_VALUES, Category, Events, Ints, RankView, Shapes, once
from stepscope.traces.launches import launches_of
from stepscope.traces.nesting import Nest, find, nest_events, sums

Dims = list[list[int]]

UNKNOWN = -1


def _mm_flop(dims: Dims) -> int:
    (m, k), (_, n) = dims[0], dims[1]
    return 2 * m * k * n


def _bmm_flop(dims: Dims) -> int:
    (b, m, k), (_, _, n) = dims[0], dims[1]
    return 2 * b * m * k * n


def _grouped_mm(dims: Dims) -> int:
    """Count a product per group where both have groups; else the groups divide rows, columns or what is summed over."""
    left, right = dims[0], dims[1]
    groups = left[0] if len(left) == len(right) == 3 else 1
    return 2 * groups * left[-2] * left[-1] * right[-1]


def _mv_flop(dims: Dims) -> int:
    return 2 * prod(dims[0])


def _added_to(product: Callable[[Dims], int]) -> Callable[[Dims], int]:
    """Return the FLOP formula of a product whose first input is what it is added to."""
    return lambda dims: product(dims[1:])


def _dot_flop(dims: Dims) -> int:
    return 2 * dims[0][0]


MATRIX_PRODUCTS: dict[str, Callable[[Dims], int]] = {
    "aten::mm": _mm_flop,
    "aten::addmm": _added_to(_mm_flop),
    "aten::_addmm_activation": _added_to(_mm_flop),
    "aten::_scaled_mm": _mm_flop,
    "aten::_scaled_mm_v2": _mm_flop,
    "aten::_grouped_mm": _grouped_mm,
    "aten::_scaled_grouped_mm": _grouped_mm,
    "aten::_scaled_grouped_mm_v2": _grouped_mm,
    "_C::cutlass_scaled_mm": _added_to(_mm_flop),
    "aten::bmm": _bmm_flop,
    "aten::baddbmm": _added_to(_bmm_flop),
    "aten::mv": _mv_flop,
    "aten::addmv": _added_to(_mv_flop),
    "aten::dot": _dot_flop,
}
"""FLOP from the dimensions of the inputs. Operators that only call one of these (aten::matmul, aten::linear) have
none of their own: nothing is counted twice.
"""

Values = list[str]
"""What the profiler writes of inputs that are no tensors: ``["", "", "[2, 2]", "True"]``."""


def _attention_flop(first: int, causal: int, products: float) -> Callable[[Dims, Values], int]:
    """Return the FLOP formula of attention. first: the query's place among the inputs; causal: that of ``is_causal``;
    products: of one S x S x D each.

    A causal mask leaves half, as in ``workloads._common.attention_flops``.
    """

    def count(dims: Dims, values: Values) -> int:
        query, key, value = dims[first : first + 3]
        share = {"True": 0.5, "False": 1.0}[values[causal]]
        per_product = 2 * prod(query[:-1]) * key[-2]
        return round(share * products / 2 * per_product * (query[-1] + value[-1]))

    return count


def _flash_attention(first: int, causal: int, products: float) -> Callable[[Dims, Values], int]:
    """The same of the flash_attn library, which has heads behind the sequence; a window's sides are behind ``causal``."""
    of_sdp = _attention_flop(first, causal, products)

    def count(dims: Dims, values: Values) -> int:
        if any(side != "-1" for side in values[causal + 1 : causal + 3]):
            raise ValueError  # a window: how many products it leaves depends on the lengths
        turned = [[d[0], d[2], d[1], d[3]] if len(d) == 4 else d for d in dims]
        return of_sdp(turned, values)

    return count


FORWARD, BACKWARD = 2, 5
"""Products of fused attention: QK^T and PV; backward computes QK^T again, then the gradients of P, V, Q and K."""


def _convolution_flop(dims: Dims, values: Values) -> int:
    """Return the FLOP of a convolution; of a transposed one each input element meets the whole kernel."""
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
    values: list[int] = msgspec.json.decode(text, type=list[int])
    return values * (len(image) - 2) if len(values) == 1 else values


def _convolution_backward(dims: Dims, values: Values) -> int:
    """Count a product of the forward pass's size for the input's gradient and one for the weight's, where asked for."""
    gradient, image, weight = dims[:3]
    wanted = msgspec.json.decode(values[10].lower(), type=list[bool])
    whole = image if values[7] != "False" else gradient
    return 2 * prod(whole) * prod(weight[1:]) * sum(wanted[:2])


_SDP = "aten::_scaled_dot_product"
WITH_SCALARS: dict[str, Callable[[Dims, Values], int]] = {
    f"{_SDP}_flash_attention": _attention_flop(0, 4, FORWARD),
    f"{_SDP}_flash_attention_backward": _attention_flop(1, 11, BACKWARD),
    f"{_SDP}_flash_attention_for_cpu": _attention_flop(0, 4, FORWARD),
    f"{_SDP}_flash_attention_for_cpu_backward": _attention_flop(1, 7, BACKWARD),
    f"{_SDP}_efficient_attention": _attention_flop(0, 6, FORWARD),
    f"{_SDP}_efficient_attention_backward": _attention_flop(1, 11, BACKWARD),
    f"{_SDP}_cudnn_attention": _attention_flop(0, 6, FORWARD),
    f"{_SDP}_cudnn_attention_backward": _attention_flop(1, 14, BACKWARD),
    "flash_attn::_flash_attn_forward": _flash_attention(0, 5, FORWARD),
    "flash_attn::_flash_attn_backward": _flash_attention(1, 11, BACKWARD),
    "aten::convolution": _convolution_flop,
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
    """Return each event's FLOP (shape of ``indices``, UNKNOWN where not known), where they are from, and why there are none.

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
        _input_flop(products[int(p) // len(events.shapes)], events.shapes[int(p) % len(events.shapes)]) for p in pairs
    ]
    result[chosen] = np.array(values, dtype=np.int64)[inverse]
    return result, "shapes", None


def _with_scalars(events: Events) -> dict[int, int]:
    """FLOP of the events whose other inputs are recorded; UNKNOWN where those are odd."""
    flop: dict[int, int] = {}
    counts: dict[tuple[str, str, str], int] = {}
    for index, text in events.values.items():
        shape = int(events.shape[index])
        if shape == NONE:
            continue
        key = events.name_of(index), events.shapes[shape].dims, text
        if key not in counts:
            counts[key] = _count_with_scalars(*key)
        flop[index] = counts[key]
    return flop


def _count_with_scalars(name: str, dims: str, values: str) -> int:
    try:
        shapes = msgspec.json.decode(dims, type=list[Any])
        return WITH_SCALARS[name](shapes, msgspec.json.decode(values, type=Values))
    except (msgspec.MsgspecError, ValueError, IndexError, KeyError, TypeError):
        return UNKNOWN


def uncounted_products(events: Events) -> tuple[str, ...]:
    """Names of the operators in the trace whose FLOP neither a record nor their shapes tell."""
    if events.flop:
        return ()
    used = {events.names[c] for c in distinct(events.name[events.category == Category.CPU_OP]).tolist()}
    counted = _with_scalars(events)
    odd = {events.name_of(index) for index, flop in counted.items() if flop == UNKNOWN}
    certain = {events.name_of(index) for index in counted} - odd
    silent = [name for name in used & WITH_SCALARS.keys() if name not in certain]
    good = [part for part, family in _FAMILIES if certain & set(family) and not set(silent) & set(family)]
    return tuple(
        sorted(
            n
            for n in used
            if n.startswith("aten::")
            and any(part in n for part in NOT_FROM_SHAPES)
            and not any(part in n for part in good)
        )
    )


_PACKED = "c10::Float4_e2m1fn_x2"
"""Two numbers of FP4 an element, along the dimension that products sum over."""


def _input_flop(formula: Callable[[Dims], int], inputs: Shapes) -> int:
    """Return the FLOP of one call; UNKNOWN where its shapes do not fit the formula."""
    try:
        dims = msgspec.json.decode(inputs.dims, type=Dims)
        return formula(dims) * (2 if _PACKED in inputs.types else 1)
    except (msgspec.MsgspecError, ValueError, IndexError, TypeError):
        # Tensor lists and odd arguments: the profiler writes what it gets.
        return UNKNOWN


SORTS = ("device_self", "device_total", "host_self", "host_total", "calls", "flop", "name")


@dataclass(frozen=True, kw_only=True)
class OperatorLinks:
    """The tree of a rank's operators and, for every event of ``of``, which operator launched it.

    owner: position in ``nest`` of the innermost operator around the launch, NONE where there is none.
    """

    nest: Nest
    of: Ints
    owner: Ints

    def owner_of(self, indices: Ints) -> Ints:
        """The owners of these events, which must be among ``of``."""
        return self.owner[find(self.of, indices)]


@once
def links_of(view: RankView) -> OperatorLinks:
    """Launches belong to the innermost operator open on their thread; where the runtime's events carry another
    thread id, to the operator of their external id, provided that it is open at that time.
    """
    events, launches = view.events, launches_of(view)
    chosen = events.where(Category.CPU_OP)
    tree = nest_events(events, chosen)
    owner = np.full(len(launches.of), NONE, dtype=np.int64)
    linked = np.flatnonzero(launches.linked)
    call = launches.launch[linked]
    owner[linked] = tree.innermost(events.thread[call].astype(np.int64), events.ts_ns[call])
    lost = linked[owner[linked] == NONE]
    owner[lost] = _by_external_id(events, tree, launches.launch[lost])
    return OperatorLinks(nest=tree, of=launches.of, owner=owner)


def _by_external_id(events: Events, tree: Nest, call: Ints) -> Ints:
    """Return the place of the operator that was open when each call was made and has its external id; NONE: none."""
    wanted, when = events.external_id[call], events.ts_ns[call]
    place = find(events.external_id[tree.index], wanted)
    if not len(tree):
        return place
    open_then = (tree.starts[place] <= when) & (when < tree.ends[place])
    # Ids up to 0 are written where there is none.
    return np.where((wanted > 0) & open_then, place, NONE)


def operator_table(view: RankView) -> OperatorTable | None:
    """The rank's operators, sorted by one of SORTS (largest first; names ascending); None without operators.

    Sorting by device time on a trace without device events sorts by the same figure of the host.
    """
    events, launches, links, sort = view.events, launches_of(view), links_of(view), view.wanted.sort
    tree = links.nest
    if not len(tree):
        return None
    device = events.is_device[launches.of]
    spent = np.where(device, events.dur_ns[launches.of], 0)
    owned = device & (links.owner != NONE)

    used, labels = np.unique(events.name[tree.index].astype(np.int64), return_inverse=True)
    labels = labels.astype(np.int64)
    outer = tree.outermost_of(labels)
    count = len(used)
    launched_ns = sums(links.owner[owned], spent[owned], len(tree))
    flop, flop_known, source, why_not = _flop_by_row(events, tree, labels, count)
    host_self = sums(labels, tree.self_ns, count)
    host_total = sums(labels[outer], (tree.ends - tree.starts)[outer], count)
    device_self = sums(labels, launched_ns, count)
    device_total = sums(labels[outer], tree.subtree_sums(launched_ns)[outer], count)
    calls = np.bincount(labels, minlength=count)
    launches_of_label = np.bincount(labels[links.owner[owned]], minlength=count)

    figures = {
        "device_self": device_self, "device_total": device_total, "host_self": host_self,
        "host_total": host_total, "calls": calls, "flop": flop,
    }  # fmt: skip
    if sort.startswith("device") and not device.any():
        sort = sort.replace("device", "host")
    names = [events.names[name] for name in used.tolist()]
    by_name = np.array(sorted(range(count), key=lambda i: names[i]), dtype=np.int64)
    ranked = by_name
    if sort != "name":
        ranked = by_name[np.lexsort((-host_total[by_name], -figures[sort][by_name]))]
    rows = tuple(
        OperatorRow(
            rank=view.rank,
            name=names[i],
            shapes=None,
            calls=int(calls[i]),
            host_total_ns=int(host_total[i]),
            host_self_ns=int(host_self[i]),
            device_total_ns=int(device_total[i]),
            device_self_ns=int(device_self[i]),
            device_events=int(launches_of_label[i]),
            flop=int(flop[i]) if flop_known[i] else None,
        )
        for i in ranked.tolist()
    )
    return OperatorTable(
        rank=view.rank,
        rows=rows,
        host_ns=int(tree.self_ns.sum()),
        device_ns=int(spent.sum()),
        outside_ns=int(spent[device & launches.linked & (links.owner == NONE)].sum()),
        unlinked_ns=int(spent[device & ~launches.linked].sum()),
        left_out_rows=0,
        left_out_host_self_ns=0,
        left_out_device_self_ns=0,
        flop_source=source,
        flop_unavailable=why_not,
    )


def rows_by_shapes(view: RankView, seen: Callable[[str], bool]) -> tuple[OperatorRow, ...]:
    """Return the rank's operators whose names are ``seen``, by name and shapes of their inputs, with what is inside of them;
    none with another around it, and none without recorded shapes."""
    events, launches, links = view.events, launches_of(view), links_of(view)
    tree = links.nest
    names = np.array([seen(name) for name in events.names], dtype=bool)
    chosen = names[events.name[tree.index]] if len(tree) and len(events.shapes) else np.zeros(0, dtype=bool)
    if not chosen.any():
        return ()
    outer = tree.outermost_of(np.where(chosen, 0, 1 + np.arange(len(tree))))
    rows = np.flatnonzero(chosen & outer & (events.shape[tree.index] != NONE))
    device = events.is_device[launches.of]
    owned = device & (links.owner != NONE)
    launched_ns = sums(links.owner[owned], events.dur_ns[launches.of][owned], len(tree))
    launched = np.bincount(links.owner[owned], minlength=len(tree)).astype(np.int64)
    index, many = tree.index[rows], len(events.shapes)
    used, labels = np.unique(events.name[index].astype(np.int64) * many + events.shape[index], return_inverse=True)
    own, whole, on_device, events_there = (
        sums(labels, values[rows], len(used))
        for values in (
            tree.self_ns, tree.ends - tree.starts, tree.subtree_sums(launched_ns), tree.subtree_sums(launched)
        )
    )  # fmt: skip
    calls = np.bincount(labels, minlength=len(used))
    return tuple(
        OperatorRow(
            rank=view.rank, name=events.names[int(used[i]) // many], shapes=events.shapes[int(used[i]) % many].dims,
            calls=int(calls[i]), host_total_ns=int(whole[i]), host_self_ns=int(own[i]),
            device_total_ns=int(on_device[i]), device_self_ns=int(on_device[i]), device_events=int(events_there[i]),
            flop=None,
        )
        for i in np.lexsort((used, -whole, -on_device)).tolist()
    )  # fmt: skip


def _flop_by_row(
    events: Events, tree: Nest, labels: Ints, count: int
) -> tuple[Ints, NDArray[np.bool_], str | None, str | None]:
    """Return FLOP by row, whether they are known for all of its calls, where they are from, and why there are none."""
    flop, source, why_not = flop_by_event(events, tree.index)
    has = flop >= 0
    complete = np.ones(count, dtype=bool)
    complete[labels[~has]] = False
    return sums(labels[has], flop[has], count), complete, source, why_not


LINEAR, ADDMM, EMBEDDING = "aten::linear", "aten::addmm", "aten::embedding"
ATTENTION = "aten::scaled_dot_product_attention"
_FUSED = "aten::_scaled_dot_product_"

Shape = tuple[int, ...]


@record
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
    """Count the layers' calls in one rank's trace."""
    linear: Counter[tuple[int, int]] = Counter()
    embedding: Counter[tuple[int, int]] = Counter()
    attention: Counter[tuple[Shape, Shape]] = Counter()
    for name, dims in _outermost_operators(events):
        if name == LINEAR and _has_dimensions(dims, 1, 2):
            linear[dims[1][0], dims[1][1]] += 1
        elif name == ADDMM and _has_dimensions(dims, 2, 2):  # Conv1D of GPT-2: its weight lies the other way round
            linear[dims[2][1], dims[2][0]] += 1
        elif name == EMBEDDING and _has_dimensions(dims, 0, 2):
            embedding[dims[0][0], dims[0][1]] += 1
        elif name == ATTENTION and _has_dimensions(dims, 0, 4) and _has_dimensions(dims, 1, 4):
            attention[tuple(dims[0]), tuple(dims[1])] += 1
    back = events.named(lambda name: name.startswith(_FUSED) and name.endswith("_backward"))
    back &= events.category == Category.CPU_OP
    return LayerCalls(
        linear=linear, embedding=embedding, attention=attention, attention_backward=int(np.count_nonzero(back))
    )


def _outermost_operators(events: Events) -> Iterator[tuple[str, list[Any]]]:
    """Yield (name, shapes of inputs) of the operators of a layer that are in no other such operator."""
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


def _has_dimensions(dims: list[Any], place: int, length: int) -> bool:
    """Whether the input at ``place`` is a tensor of so many dimensions."""
    sizes = dims[place] if place < len(dims) else None
    return isinstance(sizes, list) and len(sizes) == length and all(isinstance(n, int) for n in sizes)
