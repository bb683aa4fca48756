"""torch's ``parallelize_module``: layers divided over the mesh's ``tp``, and what a rank then holds
sharded by block over its ``dp`` (``fully_shard`` with torch's defaults)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from math import gcd

from stepscope.records.mesh import WORLD
from stepscope.records.options import OptionsModel
from stepscope.records.plan import CommOp, CutModule, MemoryPlan, ModelFacts, ParallelPlan, ParameterFact, Setting
from stepscope.strategies import _common
from stepscope.strategies._common import REGISTERED, ShardedOptions, Strategy, all_of, memory, norm_reduction

CUT_AT = {
    "column": {"weight": 0, "bias": 0},
    "head": {"weight": 0, "bias": 0},
    "row": {"weight": 1},
    "table": {"weight": 0},
}
"""Dimension in which a style divides a parameter; a parameter that is not named is whole on every rank."""

LOSS_REDUCTIONS = 3
"""Calls of a divided loss: largest score, sum of exponentials and score of the target, each one value a position
(torch/distributed/tensor/parallel/loss.py, torch 2.13)."""


class TensorParallelOptions(OptionsModel):
    """sequence_parallel: between divided layers each rank holds a share of the positions in place of all of them.

    loss_parallel: the head's scores stay divided and the loss is computed from the shares.
    """

    sequence_parallel: bool = False
    loss_parallel: bool = False


def _why_no_tensor_parallel(facts: ModelFacts, setting: Setting, options: TensorParallelOptions) -> str | None:
    """Say why the model cannot be divided so; None: it can."""
    plan, tp = facts.tensor_parallel, setting.size("tp")
    problems = [
        "tensor parallelism needs a mesh with 2 or more ranks in tp, such as mesh: {tp: 2}" if tp < 2 else None,
        "each rank of a tensor-parallel group would find another overflow and scale its loss apart: use amp_bf16"
        if setting.precision == "amp_fp16"
        else None,
    ]
    if plan is None:
        problems.append(f"the workload does not say which of its layers can be divided over ranks: {REGISTERED}")
        return all_of(*problems)
    return all_of(
        *problems,
        "sequence_parallel needs a model that treats every position alike up to its scores, and this one does not"
        if options.sequence_parallel and plan.split_at is None
        else None,
        "loss_parallel needs a head whose scores are divided, and this model's is whole on every rank"
        if options.loss_parallel and not any(m.style == "head" for m in plan.modules)
        else None,
        _does_not_divide(facts, plan, tp, sequence=options.sequence_parallel) if tp > 1 else None,
    )


def _does_not_divide(facts: ModelFacts, plan: ParallelPlan, tp: int, *, sequence: bool) -> str | None:
    sizes = dict(_divided_numbers(facts, plan, sequence=sequence))
    broken = {text: size for text, size in sizes.items() if size % tp}
    if not broken:
        return None
    common = gcd(*sizes.values())
    fitting = [str(n) for n in range(2, common + 1) if common % n == 0][:6]
    what = ", ".join(f"{text} ({size})" for text, size in list(broken.items())[:3])
    fix = f"tp {' or '.join(fitting)} would" if fitting else "no tp does: change the model"
    return f"tp {tp} does not divide {what}; {fix}"


def _divided_numbers(facts: ModelFacts, plan: ParallelPlan, *, sequence: bool) -> Iterator[tuple[str, int]]:
    """Yield each number that has to be a multiple of tp, with its name."""
    if plan.heads is not None:
        yield "the attention heads", plan.heads
    for module, inputs, outputs in _module_widths(facts, plan):
        if module.style in ("column", "head"):
            yield f"the outputs of {module.name}", outputs
        elif module.style == "row":
            yield f"the inputs of {module.name}", inputs
        elif module.style == "table":
            yield f"the rows of {module.name}", inputs
        elif sequence:
            yield "the positions", module.positions


def _module_widths(facts: ModelFacts, plan: ParallelPlan) -> Iterator[tuple[CutModule, int, int]]:
    """Yield each module with the width of its inputs and outputs, a table with its rows and their width."""
    shapes = {p.name: p.shape or () for p in facts.parameters}
    for module in plan.modules:
        shape = shapes[module.tied or f"{module.name}.weight"]
        inputs, outputs = shape if module.style == "table" else (shape[-1], shape[0])
        yield module, inputs, outputs


def share(facts: ModelFacts, tp: int) -> ModelFacts:
    """Return the model that one rank of ``tp`` holds."""
    cuts = {
        f"{m.name}.{name}": dim
        for m in (facts.tensor_parallel.modules if facts.tensor_parallel else ())
        for name, dim in CUT_AT.get(m.style, {}).items()
    }

    def part(p: ParameterFact) -> ParameterFact:
        at = cuts.get(p.name)
        if at is None or p.shape is None:
            return p
        shape = tuple(n // tp if d == at else n for d, n in enumerate(p.shape))
        return replace(p, numel=p.numel // tp, shape=shape)

    return replace(facts, parameters=tuple(map(part, facts.parameters)))


def _tensor_parallel_comm_plan(
    facts: ModelFacts, setting: Setting, options: TensorParallelOptions
) -> tuple[CommOp, ...]:
    """Return what one step sends: layers' inputs and outputs, gradients of norms, and over replicas."""
    plan = facts.tensor_parallel
    assert plan is not None
    stored = facts.parameters[0].dtype
    computed = {"amp_bf16": "bfloat16"}.get(setting.precision, stored)
    sequence = options.sequence_parallel
    forward: list[CommOp] = []
    backward: list[CommOp] = []

    def op(name: str, width: int, phase: str, dtype: str = stored) -> CommOp:
        numel = setting.micro_batch * module.positions * width
        return CommOp(op=name, numel=numel, dtype=dtype, phase=phase, group="tp", module=module.name, blocking=True)

    for number, (module, inputs, outputs) in enumerate(_module_widths(facts, plan)):
        collect, spread = ("all_gather", "reduce_scatter") if sequence else ("", "all_reduce")
        if module.style in ("column", "head"):
            # The batch itself takes no gradient.
            if number or sequence:
                backward.append(op(spread, inputs, "backward"))
            if sequence:
                forward.append(op(collect, inputs, "forward"))
            if module.style == "head" and not options.loss_parallel:
                forward.append(op("all_gather", outputs, "forward", computed))
        elif module.style == "row":
            forward.append(op(spread, outputs, "forward", computed))
            if sequence:
                backward.append(op(collect, outputs, "backward", computed))
        elif module.style == "table":
            forward.append(op("all_reduce", outputs, "forward"))
            if sequence:
                backward.append(replace(op(collect, outputs, "backward"), module=plan.split_at or ""))
    if options.loss_parallel:
        module = replace(plan.modules[-1], name="loss")
        dtype = stored if stored == "float64" else "float32"
        forward += [op("all_reduce", 1, "forward", dtype)] * LOSS_REDUCTIONS
    shards = setting.size("dp")
    norms = list(_norm_gradient_sums(facts, plan)) if sequence else []
    clipped = norm_reduction(facts, setting, group=WORLD if shards > 1 else "tp")
    if shards == 1:
        return (*((*forward, *reversed(backward)) * setting.accumulation), *norms, *clipped)
    # fully_shard sums them over tp itself, before it reduces a unit over dp.
    last = _by_unit([*reversed(backward)], [replace(n, phase="backward") for n in norms], facts.blocks)
    unclipped = replace(setting, clip=False)
    dp = _common.comm_plan(share(facts, setting.size("tp")), unclipped, ShardedOptions(), group="dp")
    return (*((*forward, *reversed(backward)) * (setting.accumulation - 1)), *forward, *last, *dp, *clipped)


def _norm_gradient_sums(facts: ModelFacts, plan: ParallelPlan) -> Iterator[CommOp]:
    """Yield the sums of the norms' gradients, of which each rank has the part of its positions."""
    names = {f"{m.name}.{part}": m.name for m in plan.modules if m.style == "norm" for part in ("weight", "bias")}
    for p in facts.parameters:
        if p.name in names:
            yield CommOp(
                op="all_reduce",
                numel=p.numel,
                dtype=p.dtype,
                phase="after_backward",
                group="tp",
                module=names[p.name],
                members=(p.name,),
                blocking=True,
            )


def _by_unit(backward: list[CommOp], norms: list[CommOp], blocks: Sequence[str]) -> Iterator[CommOp]:
    """Put ``norms`` of each block behind the last of its other calls, those of no block at the end."""

    def of(op: CommOp) -> str:
        return next((b for b in blocks if op.module.startswith(f"{b}.") or op.module == b), "")

    for block, calls in groupby(backward, key=of):
        yield from calls
        yield from (n for n in norms if block and of(n) == block)
    yield from (n for n in norms if not of(n))


def _tensor_parallel_memory_plan(facts: ModelFacts, setting: Setting, options: TensorParallelOptions) -> MemoryPlan:
    shard, shards = share(facts, setting.size("tp")), setting.size("dp")
    plan = memory(shard, setting) if shards == 1 else _common.memory_plan(shard, setting, ShardedOptions(), group="dp")
    return replace(plan, activations=_activation_bytes(facts, setting, options))


def _activation_bytes(facts: ModelFacts, setting: Setting, options: TensorParallelOptions) -> dict[str, int] | None:
    """Divide kinds that are shared out, also as positions or scores, by ``tp``; the rest is whole on every rank."""
    kept, tp = facts.activations.get(setting.activation_checkpointing), setting.size("tp")
    if (
        facts.tensor_parallel is None
        or not kept
        or setting.activation_checkpointing != "none"
        or setting.precision.startswith("amp_")
    ):
        return None
    divided = dict(facts.tensor_parallel.divided_activations)
    if options.sequence_parallel:
        divided["inputs of norms"] = kept["inputs of norms"]
    if options.loss_parallel:
        divided["scores"] = kept["scores"]
    return {kind: setting.micro_batch * (n - divided.get(kind, 0) * (tp - 1) // tp) for kind, n in kept.items()}


STRATEGY = Strategy(
    key="tensor_parallel",
    summary="torch's column- and row-wise layers over tp, fully_shard over dp",
    options=TensorParallelOptions,
    comm_plan=_tensor_parallel_comm_plan,
    requires=_why_no_tensor_parallel,
    memory_plan=_tensor_parallel_memory_plan,
    dimensions=frozenset({"dp", "tp"}),
    sharded=True,
    torch="2.6",  # torch.distributed.fsdp.fully_shard
    variants=(
        {},
        {"sequence_parallel": True},
        {"loss_parallel": True},
        {"sequence_parallel": True, "loss_parallel": True},
    ),
)
