"""What every strategy declares, and the plans that several of them share.

``fully_shard``'s, of ``fsdp2`` and ``hsdp``: the order of calls follows FSDPState and FSDPParamGroup in
torch/distributed/fsdp/_fully_shard (torch 2.13).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from stepscope.core.dataclass import record
from stepscope.core.errors import UsageError
from stepscope.core.words import unknown
from stepscope.records.options import OptionsModel
from stepscope.records.plan import DTYPE_BYTES, CommOp, MemoryPlan, ModelFacts, ParameterFact, Setting

MIB = 1 << 20

STATES_PER_PARAMETER = {"sgd": 0, "adam": 2, "adamw": 2}
"""Tensors like the parameter that torch's optimizers keep for each one; sgd keeps one more with momentum."""


class NoOptions(OptionsModel):
    """A strategy without options."""


REGISTERED = "gpt, mlp and deep_mlp do, and a workload that you register can (docs/howto/my-own-model.md)"
"""How a model says how it is divided."""


@record
class Strategy:
    """A strategy's spec.

    requires(facts, setting, options): None when it can run there (the default: anywhere), else the reason it cannot.
    comm_plan(facts, setting, options): collectives of one optimizer step in steady state, in launch order.
    memory_plan(facts, setting, options): bytes per rank; by default of a full replica and nothing beside it.
    tolerance(options): largest norm-wise relative error of the gradients it may make (0: exact arithmetic
    up to the order of additions). 1 or more: it carries its error into later steps, and the figure holds for
    the first lossy step only.
    min_warmup_steps(options): steps that must pass before a step is typical (bucket rebuild, PowerSGD start).
    dimensions: of a mesh that it can run on. evaluates: whether the model can be evaluated between epochs.
    plan_of_rank(facts, setting, options, rank): the comm_plan of one rank, where ranks differ; None: all are alike.
    torch: its first release that has what the implementation calls; None: any that is supported.
    variants: option sets that together reach every path of the implementation; the conformance test runs each of them.
    """

    key: str
    summary: str
    options: type[OptionsModel]
    comm_plan: Callable[[ModelFacts, Setting, Any], tuple[CommOp, ...]]
    requires: Callable[[ModelFacts, Setting, Any], str | None] = lambda *_: None
    memory_plan: Callable[[ModelFacts, Setting, Any], MemoryPlan] = lambda facts, setting, _: memory(facts, setting)
    tolerance: Callable[[Any], float] = lambda _: 0.0
    min_warmup_steps: Callable[[Any], int] = lambda _: 1
    dimensions: frozenset[str] = frozenset({"dp"})
    evaluates: bool = True
    plan_of_rank: Callable[[ModelFacts, Setting, Any, int], tuple[CommOp, ...]] | None = None
    sharded: bool = False  # no rank holds the whole model, also after the session is closed
    collective: bool = True  # False: runs on one rank only
    torch: str | None = None
    variants: tuple[Mapping[str, Any], ...] = ({},)


def all_of(*reasons: str | None) -> str | None:
    """All reasons why something cannot run, in one line; None: it can."""
    return "; ".join(reason for reason in reasons if reason) or None


def norm_reduction(facts: ModelFacts, setting: Setting, *, group: str) -> tuple[CommOp, ...]:
    """Plan, with ``clip``, the sum over ``group`` of each rank's squared norm of gradients, one value."""
    dtype = "float64" if facts.parameters[0].dtype == "float64" else "float32"
    op = CommOp(op="all_reduce", numel=1, dtype=dtype, phase="optimizer", group=group, blocking=True)
    return (op,) if setting.clip else ()


def bucket_bytes(bucket_cap_mb: float) -> int:
    """Bucket capacity in bytes of an option given in MiB, cut to an integer as torch does."""
    return int(bucket_cap_mb * MIB)


def assign_buckets(
    tensors: Sequence[tuple[str, int]], *, order: Iterable[int], caps_bytes: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """Return which tensors share a bucket: indices into ``tensors``, buckets in launch order.

    tensors: (dtype, bytes) of each. order: in which they are filled in. caps_bytes: capacity of the first
    bucket, the second, ...; the last one holds for all that follow.

    A bucket closes as soon as its size reaches its capacity, so that it may exceed it by almost one tensor; a
    tensor is never split; each dtype has buckets of its own. This is what torch's reducer does when it
    rebuilds its buckets (compute_bucket_assignment_by_size in torch/csrc/distributed/c10d/reducer.cpp, torch
    2.13). What is left over at the end comes in order of each dtype's first tensor; torch leaves that open.
    """
    closed: list[tuple[int, ...]] = []
    filling: dict[str, list[int]] = {}
    size: dict[str, int] = {}
    caps_used: dict[str, int] = {}
    for index in order:
        dtype, nbytes = tensors[index]
        filling.setdefault(dtype, []).append(index)
        size[dtype] = size.get(dtype, 0) + nbytes
        used = caps_used.get(dtype, 0)
        if size[dtype] >= caps_bytes[min(used, len(caps_bytes) - 1)]:
            closed.append(tuple(filling[dtype]))
            filling[dtype], size[dtype], caps_used[dtype] = [], 0, used + 1
    return (*closed, *(tuple(rest) for rest in filling.values() if rest))


def ready_order(facts: ModelFacts, setting: Setting) -> tuple[int, ...]:
    """Indices of the parameters in the order in which their gradients become ready in this setting.

    Autocast changes it. A workload that does not know its order under autocast is planned with the other one,
    and the plan check of a run shows whether that held.
    """
    if setting.precision.startswith("amp_") and facts.ready_order_autocast is not None:
        return facts.ready_order_autocast
    return facts.ready_order


DDP_CAPS_BYTES = (1 * MIB, 25 * MIB)
"""torch's buckets when no size is asked for: a small first one, so that communication starts early
(torch/nn/parallel/distributed.py, _BucketCapacityConfig; torch.distributed._DEFAULT_FIRST_BUCKET_BYTES)."""


def ddp_buckets(
    facts: ModelFacts, setting: Setting, bucket_cap_mb: float | None
) -> tuple[tuple[ParameterFact, ...], ...]:
    """Return the buckets of torch's DistributedDataParallel. bucket_cap_mb: MiB; None: its default size."""
    caps = DDP_CAPS_BYTES if bucket_cap_mb is None else [bucket_bytes(bucket_cap_mb)]
    return plan_buckets(facts, setting, caps_bytes=caps)


def plan_buckets(
    facts: ModelFacts, setting: Setting, *, caps_bytes: Sequence[int]
) -> tuple[tuple[ParameterFact, ...], ...]:
    """The buckets of a model in launch order: filled in the order in which gradients become ready."""
    tensors = [(p.dtype, p.size_bytes) for p in facts.parameters]
    indices = assign_buckets(tensors, order=ready_order(facts, setting), caps_bytes=caps_bytes)
    return tuple(tuple(facts.parameters[i] for i in bucket) for bucket in indices)


def all_reduce(parameters: Sequence[ParameterFact], *, phase: str, dtype: str | None = None) -> CommOp:
    """One all-reduce of these parameters' gradients laid end to end, in ``dtype`` or in their own."""
    return CommOp(
        op="all_reduce",
        numel=sum(p.numel for p in parameters),
        dtype=dtype or parameters[0].dtype,
        phase=phase,
        blocking=phase == "after_backward",
        members=tuple(p.name for p in parameters),
    )


def by_dtype(parameters: Iterable[ParameterFact]) -> tuple[tuple[ParameterFact, ...], ...]:
    """Parameters grouped by dtype, each group and the groups in order of appearance."""
    groups: dict[str, list[ParameterFact]] = {}
    for parameter in parameters:
        groups.setdefault(parameter.dtype, []).append(parameter)
    return tuple(tuple(group) for group in groups.values())


def memory(facts: ModelFacts, setting: Setting, *, communication_bytes: int = 0) -> MemoryPlan:
    """Memory of one full replica: parameters, as many gradients, the optimizer's state, and what is given.

    The optimizers' step counters (4 bytes a tensor, on the host) are left out.
    """
    return MemoryPlan(
        parameter_bytes=facts.gradient_bytes,
        gradient_bytes=facts.gradient_bytes,
        optimizer_bytes=optimizer_bytes(facts, setting, facts.gradient_bytes),
        communication_bytes=communication_bytes,
    )


def optimizer_bytes(facts: ModelFacts, setting: Setting, parameter_bytes: int) -> int:
    """Return the bytes of state that the optimizer keeps for ``parameter_bytes`` of the model's parameters."""
    if setting.optimizer == "own":
        return (facts.optimizer_bytes or 0) * parameter_bytes // facts.gradient_bytes
    try:
        states = STATES_PER_PARAMETER[setting.optimizer]
    except KeyError:
        raise UsageError(unknown("optimizer", setting.optimizer, STATES_PER_PARAMETER)) from None
    if setting.optimizer == "sgd" and setting.momentum != 0:
        states += 1
    return states * parameter_bytes


NARROW = {"bf16": "bfloat16", "fp32": "float32"}

# A bfloat16 parameter is off by 2^-9 relative to its size; the gradients of a few layers computed with such parameters
# and activations were off by up to 1.6e-2 of their norm in the conformance model, and by 6e-3 when they alone are rounded.
TOLERANCE = {"param_dtype": 4e-2, "reduce_dtype": 1.5e-2}


class ShardedOptions(OptionsModel):
    """reshard_after_forward: free a unit's whole parameters after its forward pass and gather them again for backward;
    a number: keep them sharded over so many ranks. blocks_per_unit: the model's blocks that are gathered together; 0: the
    whole model is one unit. param_dtype, reduce_dtype: types that parameters are gathered and computed in, and gradients
    reduced in; none: as stored. forward_prefetch, backward_prefetch: units gathered ahead; torch's own are 0 and 1.
    cpu_offload: shards lie in host memory.
    """

    reshard_after_forward: bool | int = True
    blocks_per_unit: int = Field(default=1, ge=0)
    param_dtype: Literal["none", "bf16"] = "none"
    reduce_dtype: Literal["none", "bf16", "fp32"] = "none"
    forward_prefetch: int = Field(default=0, ge=0)
    backward_prefetch: int = Field(default=1, ge=1)
    cpu_offload: bool = False


@record
class Unit:
    """Parameters that are gathered together. root: what no block holds; it stays whole from forward to backward.

    first: its input needs no gradient, so its own are reduced at the very end.
    """

    blocks: tuple[str, ...]
    parameters: tuple[ParameterFact, ...]
    root: bool = False
    first: bool = False


def units(facts: ModelFacts, options: ShardedOptions) -> tuple[Unit, ...]:
    """The units in the order of use, the root ahead; a root without parameters is left out."""
    size = options.blocks_per_unit
    groups = [facts.blocks[i : i + size] for i in range(0, len(facts.blocks), size)] if size else []
    inside = [tuple(p for p in facts.parameters if p.name.startswith(tuple(f"{b}." for b in g))) for g in groups]
    taken = {p.name for group in inside for p in group}
    rest = tuple(p for p in facts.parameters if p.name not in taken)
    block_units = [
        Unit(blocks=blocks, parameters=members, first=members[:1] == facts.parameters[:1])
        for blocks, members in zip(groups, inside, strict=True)
    ]
    return (*([Unit(blocks=(), parameters=rest, root=True)] if rest else []), *block_units)


def shard_numel(parameter: ParameterFact, shards: int) -> int:
    """Elements of one rank's piece: rows are dealt out in whole, so the last ranks' may be padding."""
    rows = parameter.shape[0] if parameter.shape else 1
    return -(-rows // shards) * (parameter.numel // rows)


def requires(facts: ModelFacts, setting: Setting, options: ShardedOptions, *, group: str) -> str | None:
    """Return why it cannot run there, with shards over the mesh's dimension ``group``; None: it can."""
    shards = setting.size(group)
    reshard = options.reshard_after_forward
    divides = isinstance(reshard, bool) or (1 < reshard < shards and shards % reshard == 0)
    fits = "".join(f", {n}" for n in range(2, shards) if shards % n == 0)
    return all_of(
        "the shards cannot be planned: the workload does not state the shapes of its parameters"
        if any(p.shape is None for p in facts.parameters)
        else None,
        "cpu_offload moves shards from a GPU to the host: CPU ranks have them there already"
        if options.cpu_offload and setting.device == "cpu"
        else None,
        None
        if divides
        else f"reshard_after_forward {reshard} must divide the {shards} shards and be smaller: use true, false{fits}",
        "amp_fp16 is not supported: the overflow check of its loss scale is not planned for shards; use amp_bf16"
        if setting.precision == "amp_fp16"
        else None,
        f"param_dtype {options.param_dtype} is a precision of its own: set precision to fp32, not {setting.precision}"
        if options.param_dtype != "none" and setting.precision != "fp32"
        else None,
    )


def tolerance(options: ShardedOptions) -> float:
    return max((TOLERANCE[name] for name in TOLERANCE if getattr(options, name) == "bf16"), default=0.0)


def _gathered_dtype(unit: Unit, options: ShardedOptions) -> str:
    return NARROW.get(options.param_dtype, unit.parameters[0].dtype)


def comm_plan(
    facts: ModelFacts, setting: Setting, options: ShardedOptions, *, group: str, replicated: str | None = None
) -> tuple[CommOp, ...]:
    """Gathers and reductions of one optimizer step; every micro-step gathers, the last one reduces.

    group, replicated: the mesh's dimensions of the shards and of their replicas. On the CPU all of them block:
    fully_shard overlaps by streams, which only accelerators have.
    """
    shards, replicas = setting.size(group), 1 if replicated is None else setting.size(replicated)
    if shards == replicas == 1:
        return ()  # fully_shard on one rank calls nothing
    every = units(facts, options)
    blocking = setting.device == "cpu"

    def op(name: str, unit: Unit, phase: str, dtype: str, n: int, group: str) -> CommOp:
        members = tuple(p.name for p in unit.parameters)
        return CommOp(op=name, numel=n, dtype=dtype, phase=phase, members=members, group=group, blocking=blocking)

    def padded(unit: Unit) -> int:
        return shards * sum(shard_numel(p, shards) for p in unit.parameters)

    def gather(unit: Unit, phase: str) -> CommOp:
        reshard = options.reshard_after_forward
        fewer = phase == "backward" and not isinstance(reshard, bool)
        where = f"{int(reshard)} ranks" if fewer else group
        return op("all_gather", unit, phase, _gathered_dtype(unit, options), padded(unit), where)

    def reduce(unit: Unit) -> Iterator[CommOp]:
        dtype = NARROW.get(options.reduce_dtype, _gathered_dtype(unit, options))
        if shards > 1:
            yield op("reduce_scatter", unit, "backward", dtype, padded(unit), group)
        if replicated is not None and replicas > 1:
            yield op("all_reduce", unit, "backward", dtype, padded(unit) // shards, replicated)

    plan: list[CommOp] = []
    for micro_step in range(setting.accumulation):
        last = micro_step == setting.accumulation - 1
        plan += [gather(unit, "forward") for unit in every]
        for unit, gathers in _backward_units(every, options):
            plan += [gather(unit_ahead, "backward") for unit_ahead in gathers]
            plan += reduce(unit) if last else ()
    if setting.clip:
        norms = op(
            "all_reduce",
            Unit(blocks=(), parameters=()),
            "optimizer",
            facts.parameters[0].dtype,
            len(facts.parameters),
            group,
        )
        plan.append(norms)
    return tuple(plan)


def _backward_units(every: tuple[Unit, ...], options: ShardedOptions) -> Iterator[tuple[Unit, tuple[Unit, ...]]]:
    """Yield each unit in the order in which backward reduces it, with the units gathered since the one before."""
    cut = [unit for unit in every if not unit.root]
    waiting = list(cut) if options.reshard_after_forward is not False else []
    for at in reversed(range(len(cut))):
        ahead = [cut[i] for i in range(at, max(at - options.backward_prefetch, 0) - 1, -1)]
        gathers = tuple(unit for unit in ahead if unit in waiting)
        waiting = [unit for unit in waiting if unit not in gathers]
        if cut[at].first:
            yield from ((root, gathers) for root in every if root.root)
            yield cut[at], () if len(cut) < len(every) else gathers
        else:
            yield cut[at], gathers
    if not (cut and cut[0].first):
        yield from ((root, ()) for root in every if root.root)


def memory_plan(facts: ModelFacts, setting: Setting, options: ShardedOptions, *, group: str) -> MemoryPlan:
    """Plan for the first rank, whose shards are largest, and for parameters and gradients that are whole for a while.

    At the peak of a backward pass: the root, and without resharding every unit, whole; else two units, one of them ahead.
    Beside them the buffer of a gather and the whole gradients of one unit with those that are being reduced.
    """
    shards = setting.size(group)
    shard_bytes = {p.name: shard_numel(p, shards) * DTYPE_BYTES[p.dtype] for p in facts.parameters}
    states = sum(shard_bytes.values())
    every = units(facts, options)
    whole = [shards * sum(shard_bytes[p.name] for p in unit.parameters) for unit in every]
    kept = options.reshard_after_forward is False
    return MemoryPlan(
        parameter_bytes=states,
        gradient_bytes=states if setting.accumulation == 1 else states + facts.gradient_bytes,
        optimizer_bytes=optimizer_bytes(facts, setting, states),
        communication_bytes=sum(whole)
        if options.reshard_after_forward is False
        else _largest_sum(whole, facts, options),
        gathered_bytes=sum(w for w, unit in zip(whole, every, strict=True) if unit.root or kept),
    )


def _largest_sum(whole: list[int], facts: ModelFacts, options: ShardedOptions) -> int:
    roots = [size for size, unit in zip(whole, units(facts, options), strict=True) if unit.root]
    rest = sorted(whole[len(roots) :])
    return sum(roots) + sum(rest[-1 - options.backward_prefetch :])
