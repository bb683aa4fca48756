"""ZeRO stage 1: DistributedDataParallel, with the optimizer's state dealt out to the ranks."""

from __future__ import annotations

from pydantic import Field

from stepscope.records.options import OptionsModel
from stepscope.records.plan import CommOp, MemoryPlan, ModelFacts, ParameterFact, Setting
from stepscope.strategies._common import Strategy, all_of, all_reduce, ddp_buckets, memory, optimizer_bytes


class Zero1Options(OptionsModel):
    """bucket_cap_mb, gradient_as_bucket_view: DDP's. parameters_as_bucket_view: each rank's parameters lie end to end and
    travel in one broadcast, where otherwise each parameter has its own.
    """

    bucket_cap_mb: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    gradient_as_bucket_view: bool = False
    parameters_as_bucket_view: bool = False


def _parameter_parts(facts: ModelFacts, ranks: int) -> list[list[ParameterFact]]:
    """Deal out the parameters whose state each rank keeps: the largest first, always to the rank that has least.

    ZeroRedundancyOptimizer._partition_parameters, torch 2.13.
    """
    parts: list[list[ParameterFact]] = [[] for _ in range(ranks)]
    sizes = [0] * ranks
    for parameter in sorted(facts.parameters, key=lambda p: p.numel, reverse=True):
        rank = sizes.index(min(sizes))
        parts[rank].append(parameter)
        sizes[rank] += parameter.numel
    return parts


def _parameter_broadcast(parameters: list[ParameterFact], dtype: str) -> CommOp:
    numel = sum(p.numel for p in parameters) or 1  # an empty part is sent as one element
    names = tuple(p.name for p in parameters)
    # All are called before the first one is waited for (ZeroRedundancyOptimizer._sync_params, torch 2.13).
    return CommOp(op="broadcast", numel=numel, dtype=dtype, phase="optimizer", members=names)


def _why_no_zero1(facts: ModelFacts, setting: Setting, options: Zero1Options) -> str | None:
    """Say why ZeRO-1 cannot run so; None: it can."""
    return all_of(
        "zero1 makes the optimizer itself from a class of torch's: use sgd, adam or adamw, not the model's own"
        if setting.optimizer == "own"
        else None,
        "parameters_as_bucket_view needs parameters of one type"
        if options.parameters_as_bucket_view and len({p.dtype for p in facts.parameters}) > 1
        else None,
    )


def _zero1_comm_plan(facts: ModelFacts, setting: Setting, options: Zero1Options) -> tuple[CommOp, ...]:
    """Return what one step sends: buckets of gradients, then each rank's parameters."""
    buckets = ddp_buckets(facts, setting, options.bucket_cap_mb)
    parts = _parameter_parts(facts, setting.size("dp"))
    if options.parameters_as_bucket_view:
        sent = [_parameter_broadcast(part, part[0].dtype if part else "float32") for part in parts]
    else:
        sent = [_parameter_broadcast([p], p.dtype) for part in parts for p in part]
    return (*(all_reduce(bucket, phase="backward") for bucket in buckets), *sent)


def _zero1_memory_plan(facts: ModelFacts, setting: Setting, options: Zero1Options) -> MemoryPlan:
    """Plan for the rank with the largest part."""
    largest = max(sum(p.size_bytes for p in part) for part in _parameter_parts(facts, setting.size("dp")))
    whole = memory(facts, setting)
    return MemoryPlan(
        parameter_bytes=whole.parameter_bytes,
        gradient_bytes=whole.gradient_bytes,
        optimizer_bytes=optimizer_bytes(facts, setting, largest),
        communication_bytes=0 if options.gradient_as_bucket_view else facts.gradient_bytes,
    )


STRATEGY = Strategy(
    key="zero1",
    summary="torch ZeroRedundancyOptimizer over DDP: each rank keeps the optimizer state of a part of the parameters",
    options=Zero1Options,
    requires=_why_no_zero1,
    comm_plan=_zero1_comm_plan,
    memory_plan=_zero1_memory_plan,
    min_warmup_steps=lambda _: 2,  # DDP rebuilds its buckets at the start of the second step
    variants=({}, {"parameters_as_bucket_view": True, "bucket_cap_mb": 0.002}),
)
