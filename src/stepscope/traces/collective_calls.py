"""Who called a communication kernel: its arguments, the launching c10d operator, the backend's own span."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import dataclass
from stepscope.traces.collective_names import (
    Identity,
    direction_of,
    dtype_named,
    dtype_of_kernel,
    elements_of,
    op_named,
    op_of_kernel,
    ranks_by_shapes,
)
from stepscope.traces.events import NONE, Category, CollectiveArgs, Events
from stepscope.traces.groups import Groups
from stepscope.traces.nesting import Nest, nest
from stepscope.traces.recorded_inputs import Inputs, inputs_of, sized, whole_of_launch, whole_of_span

Ints = NDArray[np.int64]

_HOST_CALLS = ("c10d::", "record_param_comms", "nccl:", "rccl:", "xccl:", "ucc:")


@dataclass(frozen=True, slots=True, kw_only=True)
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
        _identity(call, name, groups, stream=None if stream == NONE else stream)
        for call, name, stream in zip(_calls(events, kernels, launch), names, streams, strict=True)
    ]


def _identity(call: _Call, kernel: str, groups: Groups, *, stream: int | None) -> Identity:
    """Arguments tell most, then the launching operator, then the backend's span, then the kernel's name."""
    args = call.args
    op, source, spelled = _op(call, kernel)
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
    peers = None
    if args and args.source_rank is not None and args.destination_rank is not None and op == "send_recv":
        peers = (args.source_rank, args.destination_rank)
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
        direction=direction_of(spelled) if op == "send_recv" else None,
        peers=peers,
        stream=stream,
    )


def _op(call: _Call, kernel: str) -> tuple[str, str, str]:
    """op, where it comes from, and how it was spelled there. NCCL runs a barrier as an all_reduce."""
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


def _calls(events: Events, kernels: Ints, launch: Ints) -> list[_Call]:
    """For each kernel the host's calls around its launch, and the arguments on itself or on any of them."""
    if not len(kernels):
        return []
    host = np.isin(events.category, (Category.CPU_OP, Category.USER_ANNOTATION))
    spoken = np.flatnonzero(host & events.named(lambda n: n.startswith(_HOST_CALLS)))
    tree = nest(spoken, events.thread[spoken].astype(np.int64), events.ts_ns[spoken], events.end_ns[spoken])
    known = launch != NONE
    at = np.where(known, launch, 0)
    inside = tree.innermost(events.thread[at].astype(np.int64), events.ts_ns[at])
    inside = np.where(known, inside, NONE)
    owners = {int(events.external_id[i]): i for i in events.collectives if events.external_id[i] != NONE}
    calls = []
    for kernel, call, place in zip(kernels.tolist(), launch.tolist(), inside.tolist(), strict=True):
        around = _around(events, tree, place)
        args = events.collectives.get(kernel) or around.args or _by_external(events, owners, kernel, call)
        calls.append(replace(around, args=args))
    return calls


def _around(events: Events, tree: Nest, place: int) -> _Call:
    """From the innermost call outwards; the innermost of each kind counts."""
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
