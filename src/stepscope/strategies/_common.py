"""What every strategy declares, and the plans that several of them share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepscope.config.options import OptionsModel
from stepscope.core.errors import UsageError
from stepscope.core.suggest import unknown
from stepscope.records.plan import CommOp, MemoryPlan, ModelFacts, ParameterFact, Setting

MIB = 1 << 20

STATES_PER_PARAMETER = {"sgd": 0, "adam": 2, "adamw": 2}
"""Tensors like the parameter that torch's optimizers keep for each one; sgd keeps one more with momentum."""


class NoOptions(OptionsModel):
    """A strategy without options."""


REGISTERED = "gpt, mlp and deep_mlp do, and a workload that you register can (docs/howto/my-own-model.md)"
"""How a model says how it is divided."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """With ``clip``: the sum over ``group`` of each rank's squared norm of gradients, one value."""
    dtype = "float64" if facts.parameters[0].dtype == "float64" else "float32"
    op = CommOp(op="all_reduce", numel=1, dtype=dtype, phase="optimizer", group=group, blocking=True)
    return (op,) if setting.clip else ()


def bucket_bytes(bucket_cap_mb: float) -> int:
    """Bucket capacity in bytes of an option given in MiB, cut to an integer as torch does."""
    return int(bucket_cap_mb * MIB)


def assign_buckets(
    tensors: Sequence[tuple[str, int]], *, order: Iterable[int], caps_bytes: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """Which tensors share a bucket: indices into ``tensors``, buckets in launch order.

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
    """Those of torch's DistributedDataParallel; None: its default size."""
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
    """State that the optimizer keeps for parameters of so many bytes, of all that the model has."""
    if setting.optimizer == "own":
        return (facts.optimizer_bytes or 0) * parameter_bytes // facts.gradient_bytes
    try:
        states = STATES_PER_PARAMETER[setting.optimizer]
    except KeyError:
        raise UsageError(unknown("optimizer", setting.optimizer, STATES_PER_PARAMETER)) from None
    if setting.optimizer == "sgd" and setting.momentum != 0:
        states += 1
    return states * parameter_bytes
