"""Pipeline parallelism: the model's blocks are cut into stages, a micro-batch after the other passes through them.

torch.distributed.pipelining runs the schedule; beside ``pp``, the ranks of ``dp`` add up their gradients of a stage once a
step, when its schedule is through.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Literal

from pydantic import Field

from stepscope.core.words import counted
from stepscope.records import mesh
from stepscope.records.mesh import PipelineLayout
from stepscope.records.options import OptionsModel
from stepscope.records.plan import DTYPE_BYTES, CommOp, MemoryPlan, ModelFacts, ParameterFact, PieceFact, Setting
from stepscope.strategies._common import REGISTERED, Strategy, all_of, all_reduce, by_dtype, memory, norm_reduction

DIMENSION = "pp"


class PipelineOptions(OptionsModel):
    """chunks: stages a rank (virtual stages); None: 2 where the schedule needs them, else 1. split: blocks of every stage,
    the first one's first; None: as equal as possible, the larger ones first.
    """

    schedule: Literal["gpipe", "1f1b", "interleaved", "zero_bubble", "zbv"] = "1f1b"
    micro_batches: int = Field(default=4, ge=1, description="parts that each micro-batch of a rank is cut into")
    chunks: int | None = Field(default=None, ge=1, description="stages a rank; 2 for interleaved and zbv, else 1")
    split: list[int] | None = Field(default=None, description="blocks of every stage; equal parts when not given")


def layout_of(setting: Setting, options: PipelineOptions) -> PipelineLayout:
    return layout_of_ranks(setting.size(DIMENSION), options)


def layout_of_ranks(ranks: int, options: PipelineOptions) -> PipelineLayout:
    return PipelineLayout(
        schedule=options.schedule,
        ranks=ranks,
        micro_batches=options.micro_batches,
        chunks=options.chunks or (2 if options.schedule in ("interleaved", "zbv") else 1),
    )


def split_of(blocks: int, stages: int, split: list[int] | None) -> tuple[int, ...]:
    """Return the number of blocks of every stage."""
    return tuple(split or [blocks // stages + (stage < blocks % stages) for stage in range(stages)])


def _why_no_pipeline(facts: ModelFacts, setting: Setting, options: PipelineOptions) -> str | None:
    """Say why the pipeline cannot run so: schedule, stages, micro-batches, batch; None: it can."""
    layout = layout_of(setting, options)
    blocks, stages, samples = len(facts.pieces), layout.stages, setting.micro_batch
    stages_text = f"{stages} stages" + (
        f" ({layout.ranks} ranks x {layout.chunks} chunks)" if layout.chunks > 1 else ""
    )
    problems: list[str | None] = [
        "it needs 2 ranks along pp or more: give a mesh such as {pp: 2}" if layout.ranks < 2 else None,
        layout.problem,
        f"1f1b needs as many micro-batches as stages or more: {options.micro_batches} are fewer than {stages}"
        if options.schedule == "1f1b" and options.micro_batches < stages
        else None,
        f"{counted(samples, 'sample')} cannot be cut into {options.micro_batches} equal micro-batches: give a micro_batch "
        f"that is a multiple of {options.micro_batches}"
        if samples % options.micro_batches
        else None,
        f"{options.schedule} asks for gradients of inputs and weights apart, and torch would run a block again for each: "
        "use gpipe, 1f1b or interleaved with activation_checkpointing"
        if setting.activation_checkpointing != "none" and options.schedule in ("zero_bubble", "zbv")
        else None,
        "each stage would find another overflow of amp_fp16's scaled loss: use amp_bf16"
        if setting.precision == "amp_fp16"
        else None,
    ]
    shared = [name for name, uses in Counter(n for p in facts.pieces for n in p.parameters).items() if uses > 1]
    if shared:
        problems.append(
            f"{shared[0]} is tied: the first and the last stage would each have it, and torch's stages share no parameter"
        )
    if not facts.pieces:
        problems.append(f"this workload does not say where it can be cut into stages: {REGISTERED}")
    elif blocks < stages:
        problems.append(f"the model has {counted(blocks, 'block')}, fewer than {stages_text}")
    elif options.split is not None and (
        len(options.split) != stages or sum(options.split) != blocks or min(options.split) < 1
    ):
        problems.append(
            f"split {options.split} is not {counted(blocks, 'block')} over {stages_text}, with 1 or more in each: "
            f"{list(split_of(blocks, stages, None))} would be"
        )
    return all_of(*problems)


def stage_pieces(
    facts: ModelFacts, layout: PipelineLayout, split: list[int] | None
) -> tuple[tuple[PieceFact, ...], ...]:
    """Return the pieces of every stage."""
    ends = accumulate(split_of(len(facts.pieces), layout.stages, split), initial=0)
    return tuple(facts.pieces[start:end] for start, end in pairwise(ends))


def _stage_parameters(facts: ModelFacts, setting: Setting, options: PipelineOptions, along: int) -> list[ParameterFact]:
    """List the parameters of the rank at place ``along`` in its pipeline, stage by stage."""
    layout = layout_of(setting, options)
    by_name = {p.name: p for p in facts.parameters}
    stages = zip(layout.rank_of_stage, stage_pieces(facts, layout, options.split), strict=True)
    return [by_name[name] for rank, own in stages if rank == along for piece in own for name in piece.parameters]


def _schedule_messages(facts: ModelFacts, setting: Setting, options: PipelineOptions, along: int) -> list[CommOp]:
    """List the messages of one schedule: outputs and gradients of every micro-batch over every border to another rank."""
    layout = layout_of(setting, options)
    pieces = stage_pieces(facts, layout, options.split)
    rank_of, messages = layout.rank_of_stage, list[CommOp]()
    for stage in range(layout.stages - 1):
        sender, receiver = rank_of[stage], rank_of[stage + 1]
        if sender == receiver:
            continue
        numel, dtype = _message_size(facts, setting, options, pieces[stage][-1])
        ends = {sender: ("send", "recv"), receiver: ("recv", "send")}.get(along, ())
        for op, phase in zip(ends, ("forward", "backward"), strict=False):
            message = CommOp(op=op, numel=numel, dtype=dtype, phase=phase, group=DIMENSION, blocking=op == "recv")
            messages += [message] * options.micro_batches
    return messages


def _message_size(facts: ModelFacts, setting: Setting, options: PipelineOptions, last: PieceFact) -> tuple[int, str]:
    """Return elements and dtype of what a stage that ends with ``last`` hands on for one micro-batch."""
    numel = setting.micro_batch // options.micro_batches * last.output_numel
    return numel, "bfloat16" if last.autocast and setting.precision == "amp_bf16" else facts.parameters[0].dtype


def message_bytes(facts: ModelFacts, setting: Setting, options: PipelineOptions) -> tuple[tuple[int, int], ...]:
    """Return bytes of a micro-batch's messages by stage: (output to the next, gradient to the one before); 0: not sent."""
    layout = layout_of(setting, options)
    rank_of, sizes = layout.rank_of_stage, list[int]()
    for stage, own in enumerate(stage_pieces(facts, layout, options.split)[:-1]):
        numel, dtype = _message_size(facts, setting, options, own[-1])
        sizes.append(0 if rank_of[stage] == rank_of[stage + 1] else numel * DTYPE_BYTES[dtype])
    return tuple(zip([*sizes, 0], [0, *sizes], strict=True))


def _plan_of_rank(facts: ModelFacts, setting: Setting, options: PipelineOptions, rank: int) -> tuple[CommOp, ...]:
    """Plan one rank's calls: messages first, by border, since the schedule decides their order."""
    along = mesh.coordinates(setting.mesh, setting.world_size, rank).get(DIMENSION, 0)
    messages = _schedule_messages(facts, setting, options, along) * setting.accumulation
    reductions = [
        all_reduce(group, phase="after_backward")
        for group in by_dtype(_stage_parameters(facts, setting, options, along))
        if setting.size("dp") > 1
    ]
    return (*messages, *reductions, *norm_reduction(facts, setting, group=DIMENSION))


def _pipeline_comm_plan(facts: ModelFacts, setting: Setting, options: PipelineOptions) -> tuple[CommOp, ...]:
    """Return the plan of the rank that exchanges most."""
    plans = [_plan_of_rank(facts, setting, options, rank) for rank in range(setting.world_size)]
    return max(plans, key=lambda plan: sum(op.size_bytes for op in plan))


def _pipeline_memory_plan(facts: ModelFacts, setting: Setting, options: PipelineOptions) -> MemoryPlan:
    """Plan for the rank with the most parameters; every micro-batch has buffers of its own for what is received."""
    of_rank = [_stage_parameters(facts, setting, options, along) for along in range(setting.size(DIMENSION))]
    along = max(range(len(of_rank)), key=lambda place: sum(p.size_bytes for p in of_rank[place]))
    received = sum(
        op.numel * DTYPE_BYTES[op.dtype] for op in _schedule_messages(facts, setting, options, along) if op.op == "recv"
    )
    largest = ModelFacts(parameters=tuple(of_rank[along]), ready_order=(), forward_flops_per_sample=0)
    plan = memory(largest, setting, communication_bytes=received)
    return replace(plan, activations=_activation_bytes(facts, setting, options))


def _activation_bytes(facts: ModelFacts, setting: Setting, options: PipelineOptions) -> dict[str, int] | None:
    """Return the bytes of the rank that keeps most: a micro-batch's, times those whose backward pass is still to come
    when the first one begins: all of them in GPipe, in 1F1B one for this and each later stage."""
    layout = layout_of(setting, options)
    mode = setting.activation_checkpointing
    if options.schedule not in ("gpipe", "1f1b") or setting.precision.startswith("amp_"):
        return None
    if not all(p.activations.get(mode) for p in facts.pieces):
        return None
    samples, stages = setting.micro_batch // options.micro_batches, stage_pieces(facts, layout, options.split)
    of_stage = []
    for stage, own in enumerate(stages):
        flying = (
            options.micro_batches if options.schedule == "gpipe" else min(options.micro_batches, len(stages) - stage)
        )
        kept = sum((Counter(p.activations[mode]) for p in own), Counter[str]())
        kinds = Counter({kind: n * samples * flying for kind, n in kept.items()})
        # A micro-batch is a view of the batch: one of them alone keeps all of it.
        batch = own[0].batch if stage == 0 and mode == "none" else {}
        kinds.update({kind: n * samples * (options.micro_batches - flying) for kind, n in batch.items()})
        of_stage.append(dict(kinds))
    return max(of_stage, key=lambda kinds: sum(kinds.values()))


STRATEGY = Strategy(
    key="pipeline",
    summary="stages of the model on ranks (torch.distributed.pipelining): GPipe, 1F1B, interleaved, zero bubble",
    options=PipelineOptions,
    requires=_why_no_pipeline,
    comm_plan=_pipeline_comm_plan,
    plan_of_rank=_plan_of_rank,
    memory_plan=_pipeline_memory_plan,
    dimensions=frozenset({DIMENSION, "dp"}),
    evaluates=False,
    sharded=True,
    torch="2.13",  # whose schedules the session drives
    variants=(
        {},
        {"schedule": "gpipe"},
        {"schedule": "interleaved"},
        {"schedule": "zero_bubble"},
        {"schedule": "zero_bubble", "chunks": 2},
        {"schedule": "zbv"},
    ),
)
