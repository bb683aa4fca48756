"""Who called a communication kernel: its arguments, the launching c10d operator, the backend's own span.

What a collective is called: arguments, launching operators and kernel names of all generations -> op, dtype, S.

Recorded inputs of a communication call (``Input Dims``, ``Input type``) -> dtype and bytes of its buffers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from stepscope.core.dataclass import record
from stepscope.records.plan import DTYPE_BYTES
from stepscope.records.trace_collectives import CollectiveGroup
from stepscope.traces.events import NONE, Category, CollectiveArgs, Events, Ints, Shapes
from stepscope.traces.groups import Groups
from stepscope.traces.nesting import Nest, nest_events

_WHOLE_IS_INPUT_TIMES_RANKS = ("all_gather", "gather")
_WHOLE_IS_OUTPUT_TIMES_RANKS = ("reduce_scatter", "scatter")


@record
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
    counts = [_tensor_elements(d, t) for d, t in zip(dims, types, strict=False)][:2]
    dtype = next((torch_name for t in types[:2] if (torch_name := dtype_named(str(t)))), None)
    return Inputs(first=counts[0] if counts else None, second=counts[1] if len(counts) > 1 else None, dtype=dtype)


def _tensor_elements(dims: Any, kind: Any) -> int | None:
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
        return first if first is not None else _elements_times_ranks(second, ranks)
    if op in _WHOLE_IS_OUTPUT_TIMES_RANKS:
        return second if second is not None else _elements_times_ranks(first, ranks)
    if op in ("all_to_all", "all_to_all_v"):
        return max((n for n in (first, second) if n is not None), default=None)
    return first


def whole_of_span(op: str, inputs: Inputs, ranks: int | None) -> int | None:
    """Elements of S from a backend's own span (``nccl:*``, ``gloo:*``), which records its inputs alone."""
    if op in _WHOLE_IS_INPUT_TIMES_RANKS:
        return _elements_times_ranks(inputs.first, ranks)
    return inputs.first if op != "scatter" else None


def sized(elements: int | None, dtype: str | None) -> int | None:
    """Return the bytes of so many elements; None when either is unknown."""
    return None if elements is None or dtype is None else elements * DTYPE_BYTES[dtype]


def _elements_times_ranks(elements: int | None, ranks: int | None) -> int | None:
    return None if elements is None or ranks is None else elements * ranks


TOGETHER = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "all_to_all_v", "barrier"})
"""Collectives that all ranks leave together: the only ones to split into transfer and waiting."""

REDUCTIONS = ("all_reduce", "reduce_scatter")
"""What sums the gradients of ranks."""

SYNONYMS: dict[str, str] = {
    "allreduce": "all_reduce", "allreduce_coalesced": "all_reduce", "allreduce_sparse": "all_reduce",
    "allgather": "all_gather", "allgather_base": "all_gather", "all_gather_base": "all_gather",
    "allgather_coalesced": "all_gather", "allgather_into_tensor_coalesced": "all_gather",
    "all_gather_into_tensor": "all_gather", "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter_base": "reduce_scatter", "reducescatter": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter", "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "alltoall": "all_to_all", "alltoall_base": "all_to_all", "all_to_all_single": "all_to_all",
    "all_to_allv": "all_to_all_v", "alltoallv": "all_to_all_v", "all_to_all_v": "all_to_all_v",
    "broadcast_oop": "broadcast", "reduce_oop": "reduce", "monitored_barrier": "barrier",
    "send": "send_recv", "recv": "send_recv", "recv_any_source": "send_recv", "sendrecv": "send_recv",
}  # fmt: skip
"""Spelling without outer underscores -> op; c10d, ProcessGroupNCCL and gloo use all of them."""

OPS = frozenset(SYNONYMS.values()) | {"broadcast", "reduce", "gather", "scatter"}

_KERNELS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), op)
    for pattern, op in (
        (r"reduce[-_]?scatter", "reduce_scatter"),
        (r"all[-_]?reduce|cross_device_reduce", "all_reduce"),
        (r"all[-_]?gather", "all_gather"),
        (r"all[-_]?(to|2)[-_]?all", "all_to_all"),
        (r"send_?recv", "send_recv"),
        (r"broadcast", "broadcast"),
        (
            r"(\bep|_ep|mori|uccl)::.*(dispatch|combine)|ep_?(dispatch|combine)|a2a_?(dispatch|combine)"
            r"|moe_?distribute_?(dispatch|combine)|node(_ll)?::(dispatch|combine)",
            "all_to_all_v",
        ),
        (r"^(nccl|rccl|msccl)\w*Kernel_Reduce_", "reduce"),
    )
)
_KERNEL_DTYPE = re.compile(
    r"_(?:Sum|Prod|Min|Max|MinMax|PreMulSum|SumPostDiv|Avg)_(\w+?)(?:_(?:RING|TREE|COLLNET|NVLS|PAT|LL)\w*)?$"
)

_DTYPES = {
    spelling: name
    for name, spellings in (
        ("float64", "double f64 float64"),
        ("float32", "float f32 float32"),
        ("float16", "half f16 c10::half float16"),
        ("bfloat16", "bfloat16 bf16 c10::bfloat16 __nv_bfloat16 rccl_bfloat16 hip_bfloat16"),
        ("int64", "long long_int i64 int64 int64_t"),
        ("uint64", "u64 uint64_t uint64 unsigned_long unsigned_long_int"),
        ("int32", "int i32 int32 int32_t"),
        ("uint32", "u32 uint32_t uint32 unsigned_int"),
        ("int16", "short short_int int16"),
        ("int8", "char i8 int8 int8_t signed_char"),
        ("uint8", "byte u8 uint8 uint8_t unsigned_char"),
        ("bool", "bool"),
        ("float8_e4m3", "float8_e4m3fn float8_e4m3fnuz f8e4m3 c10::float8_e4m3fn c10::float8_e4m3fnuz"),
        ("float8_e5m2", "float8_e5m2 float8_e5m2fnuz f8e5m2 c10::float8_e5m2 c10::float8_e5m2fnuz"),
        ("complex64", "complexfloat c10::complex<float>"),
        ("complex128", "complexdouble c10::complex<double>"),
    )
    for spelling in spellings.split()
}
"""Spelling -> torch's name of the dtype without the prefix."""


def op_named(name: str) -> str | None:
    """The op of one spelling (``_allgather_base``, ``c10d::allreduce_``, ``gloo:send``); None if it is none."""
    bare = name.rsplit(":", 1)[-1].strip("_ ").lower()
    op = SYNONYMS.get(bare, bare)
    if op in OPS:
        return op
    first = bare.split(" ", 1)[0]  # NCCL's point-to-point: "send 0->1", "nccl:recv 1<-0"
    return SYNONYMS.get(first) if first in ("send", "recv") else None


def direction_of(name: str) -> str | None:
    """Return send or recv, for the two halves of a point-to-point message; None for other names."""
    first = name.rsplit(":", 1)[-1].strip("_ ").lower().split(" ", 1)[0]
    return first if first in ("send", "recv") else "recv" if first == "recv_any_source" else None


def op_of_kernel(name: str) -> str:
    """The op that a kernel's name tells; ``unknown`` for generic kernels (RCCL's ncclDevKernel_Generic)."""
    bare = name.replace("(anonymous namespace)::", "").split("(", 1)[0]
    return next((op for pattern, op in _KERNELS if pattern.search(bare)), "unknown")


def dtype_of_kernel(name: str) -> str | None:
    """Return the dtype in a reducing kernel's name. Copying kernels always say int8_t and so tell nothing."""
    bare = name.split("(", 1)[0]
    if op_of_kernel(name) not in ("all_reduce", "reduce_scatter", "reduce"):
        return None
    match = _KERNEL_DTYPE.search(bare)
    return dtype_named(match[1]) if match else None


def dtype_named(name: str) -> str | None:
    """torch's name for a spelling of c10d (Float), of recorded inputs (c10::BFloat16) or of NCCL (bf16)."""
    return _DTYPES.get(name.strip().lower().replace(" ", "_"))


def elements_of(op: str, args: CollectiveArgs) -> int | None:
    """Return the elements of S: of the whole buffer where ranks hold parts of it, else of the tensor."""
    elements = [n for n in (args.in_elements, args.out_elements) if n is not None]
    if not elements:
        return None
    return elements[0] if op in ("all_reduce", "broadcast", "reduce") else max(elements)


def ranks_by_shapes(op: str, part_and_whole: tuple[int | None, int | None]) -> int | None:
    """Size of the group that the elements of a call's two buffers (in any order) imply: whole / part where ranks hold equal
    parts of one buffer. None for other ops, and where the two do not divide or are alike.
    """
    if op not in ("all_gather", "reduce_scatter") or None in part_and_whole:
        return None
    part, whole = sorted(n for n in part_and_whole if n is not None)
    return whole // part if 0 < part < whole and whole % part == 0 else None


@record
class Identity:
    """What one collective is, as one rank's trace tells it; fields as in ``RankCollective``."""

    op: str
    op_source: str
    kernel: str
    dtype: str | None
    size_bytes: int | None
    group: CollectiveGroup | None
    group_size: int | None = None
    sequence: int | None = None
    comms_id: int | None = None
    direction: str | None = None
    peers: tuple[int, int] | None = None
    stream: int | None = None


_HOST_CALLS = ("c10d::", "record_param_comms", "nccl:", "rccl:", "xccl:", "ucc:")


@record
class _Call:
    """What the host was in when it launched a kernel."""

    args: CollectiveArgs | None = None
    operator: str | None = None
    operator_inputs: Inputs | None = None
    span: str | None = None
    span_inputs: Inputs | None = None


def identities(events: Events, kernels: Ints, launch: Ints, groups: Groups) -> list[Identity]:
    """One Identity per kernel (event indices); ``launch``: its launch's event index, or NONE."""
    names = [events.names[code] for code in events.name[kernels].tolist()]
    streams = events.stream[kernels].tolist()
    return [
        _collective_identity(call, name, groups, stream=None if stream == NONE else stream)
        for call, name, stream in zip(_host_calls(events, kernels, launch), names, streams, strict=True)
    ]


def _collective_identity(call: _Call, kernel: str, groups: Groups, *, stream: int | None) -> Identity:
    """Arguments tell most, then the launching operator, then the backend's span, then the kernel's name."""
    args = call.args
    op, source, spelled = _op_and_source(call, kernel)
    pairs = [(args.in_elements, args.out_elements)] if args else []
    pairs += [(call.operator_inputs.first, call.operator_inputs.second)] if call.operator_inputs else []
    by_shapes = next((n for pair in pairs if (n := ranks_by_shapes(op, pair))), None)
    group, ranks = groups.taking_part(args, by_shapes)
    dtype = dtype_named(args.dtype) if args and args.dtype else None
    elements = elements_of(op, args) if args else None
    for inputs, whole in ((call.operator_inputs, whole_of_launch), (call.span_inputs, whole_of_span)):
        if inputs is not None:
            dtype = dtype or inputs.dtype
            elements = whole(op, inputs, ranks) if elements is None else elements
    dtype = dtype or dtype_of_kernel(kernel)
    direction = direction_of(spelled) if op == "send_recv" else None
    return Identity(
        op=op,
        op_source=source,
        kernel=kernel,
        dtype=dtype,
        size_bytes=0 if op == "barrier" else sized(elements, dtype),
        group=group,
        group_size=ranks,
        sequence=args.sequence if args else None,
        comms_id=args.comms_id if args else None,
        direction=direction,
        peers=_message_peers(call, group, direction, groups) if op == "send_recv" else None,
        stream=stream,
    )


_ENDS = re.compile(r"send (\d+)->(\d+)|recv (\d+)<-(\d+)")


def _message_peers(
    call: _Call, group: CollectiveGroup | None, direction: str | None, groups: Groups
) -> tuple[int, int] | None:
    """Return (source, destination) of a message as ranks of the job; None where one of them is not recorded.

    torch (ProcessGroupNCCL::send, recv) records who receives at the sender alone and who sends at the receiver alone, as a
    place in the group; its span ``nccl:send 0->1`` has both places.
    """
    args = call.args
    source, destination = (args.source_rank, args.destination_rank) if args else (None, None)
    if source is not None and destination is not None:
        return source, destination
    members = group.ranks if group is not None else None
    if call.span is not None and (ends := _ENDS.search(call.span)) is not None:
        own, other = (int(place) for place in ends.groups() if place is not None)
        if members is not None and max(own, other) < len(members):
            own, other = members[own], members[other]
    else:
        place = destination if direction == "send" else source
        if groups.rank is None or place is None or direction is None:
            return None
        own, other = groups.rank, _member_rank(place, members, own=groups.rank)
    return (own, other) if direction == "send" else (other, own)


def _member_rank(place: int, members: Sequence[int] | None, *, own: int) -> int:
    """Return the rank at this place of the group, or of this number where the group has no such place but this rank."""
    if members is None or place >= len(members) or members[place] == own:
        return place
    return members[place]


def _op_and_source(call: _Call, kernel: str) -> tuple[str, str, str]:
    """Return the op, where it comes from, and how it was spelled there. NCCL runs a barrier as an all_reduce."""
    if call.operator and op_named(call.operator) == "barrier":
        return "barrier", "launch", call.operator
    for text, source in (
        (call.args.name if call.args else None, "arguments"),
        (call.operator, "launch"),
        (call.span, "launch"),
    ):
        if text and (op := op_named(text)):
            return op, source, text
    return op_of_kernel(kernel), "kernel_name", kernel


def _host_calls(events: Events, kernels: Ints, launch: Ints) -> list[_Call]:
    """Return for each kernel the host's calls around its launch, and the arguments on itself or on any of them."""
    if not len(kernels):
        return []
    host = events.of(Category.CPU_OP, Category.USER_ANNOTATION)
    spoken = np.flatnonzero(host & events.begins(_HOST_CALLS))
    tree = nest_events(events, spoken)
    linked = launch != NONE
    at = np.where(linked, launch, 0)
    inside = tree.innermost(events.thread[at].astype(np.int64), events.ts_ns[at])
    inside = np.where(linked, inside, NONE)
    owners = {int(events.external_id[i]): i for i in events.collectives if events.external_id[i] != NONE}
    calls = []
    for kernel, call, place in zip(kernels.tolist(), launch.tolist(), inside.tolist(), strict=True):
        around = _call_around(events, tree, place)
        args = events.collectives.get(kernel) or around.args or _by_external(events, owners, kernel, call)
        calls.append(replace(around, args=args))
    return calls


def _call_around(events: Events, tree: Nest, place: int) -> _Call:
    """Collect the calls around a place from the innermost outwards; the innermost of each kind counts."""
    args: CollectiveArgs | None = None
    operator: tuple[str, Inputs | None] | None = None
    span: tuple[str, Inputs | None] | None = None
    while place != NONE:
        event = int(tree.index[place])
        name = events.name_of(event)
        shape = int(events.shape[event])
        inputs = None if shape == NONE else inputs_of(events.shapes[shape])
        args = args or events.collectives.get(event)
        if name.startswith("c10d::"):
            operator = operator or (name, inputs)
        elif name != "record_param_comms":
            span = span or (name, inputs)
        place = int(tree.parent[place])
    return _Call(
        args=args,
        operator=operator[0] if operator else None,
        operator_inputs=operator[1] if operator else None,
        span=span[0] if span else None,
        span_inputs=span[1] if span else None,
    )


def _by_external(events: Events, owners: dict[int, int], kernel: int, call: int) -> CollectiveArgs | None:
    """Arguments of the operator with the same External id, if it was running when the kernel was launched.

    Old profilers write the correlation id into this field, which may be any other operator's id.
    """
    for event in (kernel, call):
        owner = owners.get(int(events.external_id[event])) if event != NONE else None
        if owner is None:
            continue
        if call == NONE or events.ts_ns[owner] <= events.ts_ns[call] < events.end_ns[owner]:
            return events.collectives[owner]
    return None
