"""torch's DistributedDataParallel, with its bucket size and communication hooks as options."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from stepscope.records.options import OptionsModel
from stepscope.records.plan import DTYPE_BYTES, CommOp, MemoryPlan, ModelFacts, ParameterFact, Setting
from stepscope.strategies._common import MIB, Strategy, all_reduce, ddp_buckets, memory

HOOK_DTYPE = {"fp16": "float16", "bf16": "bfloat16"}

# One rounding changes a gradient vector by about 3e-4 of its norm in float16 and 2.4e-3 in bfloat16. A hook
# rounds when it casts, when it divides by the world size and at each addition; independent roundings add up in
# squares, so four times one covers 16 of them. Gradients below 6e-5 are subnormal in float16 and lose more.
_ROUNDINGS = 4
HOOK_TOLERANCE = {"none": 0.0, "fp16": _ROUNDINGS * 3e-4, "bf16": _ROUNDINGS * 2.4e-3}

# PowerSGD replaces a gradient matrix by its projection on a few directions: that can lose all of it but never
# more than its norm. What was lost is added to the next step's gradient, so later steps have no such bound.
POWERSGD_TOLERANCE = 1.0

POWERSGD_MIN_COMPRESSION = 2
"""A matrix is compressed only if that saves more than this factor (torch's min_compression_rate)."""


class DdpOptions(OptionsModel):
    """bucket_cap_mb: MiB; None is torch's default, 25 after a first bucket of 1.

    static_graph: tell torch that every step uses the same parameters. gradient_as_bucket_view: gradients
    live in the buckets. hook: what a bucket is turned into before it travels. powersgd_rank: rank of the
    approximation. powersgd_start_iter: reductions before compression starts (torch asks for at least 2).
    compile: torch.compile of the wrapped module, with a graph break at each bucket (torch's DDPOptimizer).
    """

    bucket_cap_mb: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    static_graph: bool = False
    gradient_as_bucket_view: bool = False
    hook: Literal["none", "fp16", "bf16", "powersgd"] = "none"
    powersgd_rank: int = Field(default=1, ge=1)
    powersgd_start_iter: int = Field(default=2, ge=2)
    compile: bool = False


def _min_warmup_steps(options: DdpOptions) -> int:
    # torch rebuilds its buckets at the start of the second step, with static_graph of the third.
    rebuilt = 3 if options.static_graph else 2
    if options.hook == "powersgd":
        # The first compressed step also draws and allocates its factors.
        return max(rebuilt, options.powersgd_start_iter + 1)
    return rebuilt


def _why_no_ddp(facts: ModelFacts, setting: Setting, options: DdpOptions) -> str | None:
    """Say why DDP cannot run so; None: it can."""
    if options.static_graph and setting.accumulation > 1:
        return (
            "static_graph with accumulation fails in torch: its first backward pass must synchronise, and an "
            "accumulating micro-step does not (assertion expect_autograd_hooks_ in torch's reducer)"
        )
    if options.hook == "powersgd":
        return _powersgd_requires(facts, setting, options)
    return None


def _powersgd_requires(facts: ModelFacts, setting: Setting, options: DdpOptions) -> str | None:
    if any(p.shape is None for p in facts.parameters):
        return "powersgd cannot be planned: the workload does not state the shapes of its parameters"
    if setting.precision == "amp_fp16":
        return (
            "powersgd adds what compression lost to the next step's gradients, so one overflow of amp_fp16's "
            "loss scale would corrupt every later step: use amp_bf16"
        )
    buckets = len(ddp_buckets(facts, setting, options.bucket_cap_mb))
    if setting.backend == "gloo" and buckets > 1:
        enough = math.ceil(100 * facts.gradient_bytes / MIB) / 100
        return (
            f"powersgd with several buckets ({buckets} here) aborts or hangs on gloo, because its follow-up "
            f"collectives start in a different order on each rank: set bucket_cap_mb to {enough} or more, so "
            "that there is one bucket"
        )
    needed = _min_warmup_steps(options)
    if setting.warmup_steps is not None and setting.warmup_steps < needed:
        return (
            f"powersgd starts compressing in step {options.powersgd_start_iter} (counted from 0), which must "
            f"lie inside the warm-up: ask for at least {needed} warm-up steps instead of {setting.warmup_steps}"
        )
    return None


def _ddp_comm_plan(facts: ModelFacts, setting: Setting, options: DdpOptions) -> tuple[CommOp, ...]:
    buckets = ddp_buckets(facts, setting, options.bucket_cap_mb)
    if options.hook == "powersgd":
        return tuple(op for bucket in buckets for op in _powersgd_ops(bucket, options))
    dtype = HOOK_DTYPE.get(options.hook)
    return tuple(all_reduce(bucket, phase="backward", dtype=dtype) for bucket in buckets)


def _powersgd_ops(bucket: Sequence[ParameterFact], options: DdpOptions) -> tuple[CommOp, ...]:
    """Plan the calls: what is not worth compressing, then the left factors P and the right factors Q of what is.

    All three are sent even when they are empty.
    """
    factors = {p.name: _factor_numel(p, options.powersgd_rank) for p in bucket}
    compressed = tuple(p.name for p in bucket if factors[p.name] is not None)
    sizes = [size for size in factors.values() if size is not None]
    plain = [p for p in bucket if factors[p.name] is None]
    parts = (
        (sum(p.numel for p in plain), tuple(p.name for p in plain)),
        (sum(left for left, _ in sizes), compressed),
        (sum(right for _, right in sizes), compressed),
    )
    return tuple(
        CommOp(op="all_reduce", numel=numel, dtype=bucket[0].dtype, phase="backward", members=members)
        for numel, members in parts
    )


def _factor_numel(parameter: ParameterFact, rank: int) -> tuple[int, int] | None:
    """Count the elements of P and Q for one parameter seen as a matrix of shape[0] rows; None when it travels whole.

    torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py, _should_compress, torch 2.13.
    """
    rows = parameter.shape[0] if parameter.shape else 1
    columns = parameter.numel // rows
    rank = min(rows, columns, rank)
    if (rows + columns) * rank * POWERSGD_MIN_COMPRESSION < rows * columns:
        return rows * rank, columns * rank
    return None


def _ddp_memory_plan(facts: ModelFacts, setting: Setting, options: DdpOptions) -> MemoryPlan:
    """Return the bytes of parameters, gradients, optimizer and buckets."""
    communication = 0 if options.gradient_as_bucket_view else facts.gradient_bytes
    if options.hook in HOOK_DTYPE:
        # Every bucket's narrow copy may be alive at once. A copy to the dtype it already has is none.
        dtype = HOOK_DTYPE[options.hook]
        communication += sum(p.numel * DTYPE_BYTES[dtype] for p in facts.parameters if p.dtype != dtype)
    elif options.hook == "powersgd":
        # The carried error and a copy of the input stay as large as the gradients, beside what is sent.
        communication += 2 * facts.gradient_bytes
        communication += sum(op.size_bytes for op in _ddp_comm_plan(facts, setting, options))
    return memory(facts, setting, communication_bytes=communication)


def _hook_tolerance(options: DdpOptions) -> float:
    return POWERSGD_TOLERANCE if options.hook == "powersgd" else HOOK_TOLERANCE[options.hook]


STRATEGY = Strategy(
    key="ddp",
    summary="torch DistributedDataParallel",
    options=DdpOptions,
    requires=_why_no_ddp,
    comm_plan=_ddp_comm_plan,
    memory_plan=_ddp_memory_plan,
    tolerance=_hook_tolerance,
    min_warmup_steps=_min_warmup_steps,
    variants=(
        {},
        {"bucket_cap_mb": 0.002},
        {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.002},
        {"static_graph": True},
        {"hook": "fp16", "bucket_cap_mb": 0.002},
        {"hook": "bf16", "bucket_cap_mb": 0.002},
        {"hook": "powersgd"},
    ),
)
