"""A pipeline as settings state it, and as it ran: each stage's time, the bubble beside formula and simulation, balance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate, pairwise
from statistics import fmean, median

from stepscope.core.dataclass import dataclass, record
from stepscope.core.units import format_percent
from stepscope.core.words import grouped
from stepscope.predict.pipeline import StageTime, balanced_split, meets, pipeline_orders, simulate
from stepscope.records.mesh import PipelineLayout, PipelineSpan
from stepscope.records.nouns import Measured
from stepscope.records.samples import CellResult
from stepscope.records.training import TrainingRun
from stepscope.results.evidence import CellEvidence
from stepscope.stats.order import measured_median

STAGES, MICRO_BATCHES, CHUNKS, SCHEDULE = "pipeline_parallel", "micro_batches", "pipeline_chunks", "pipeline_schedule"
"""Settings that importers write: ranks of a pipeline, micro-batches of a step, chunks of layers a rank, schedule."""

_NO_SIMPLE_BUBBLE = ("zb", "zerobubble", "zero_bubble", "dualpipe")


@record
class Pipeline:
    """A pipeline as 1F1B, or interleaved where a rank has several chunks: GPipe has the same bubble."""

    layout: PipelineLayout
    micro_batch: int | None
    global_batch: int | None


def pipeline_of(run: TrainingRun) -> Pipeline | None:
    """Return the pipeline of a run; None where it has none, an unknown number of micro-batches, or a schedule that fills its
    bubble."""
    settings = run.settings
    stages, micro, chunks = (settings.get(key) for key in (STAGES, MICRO_BATCHES, CHUNKS))
    if micro is None and settings.get(STAGES) is not None:
        micro = run.accumulation
    if not isinstance(stages, int) or not isinstance(micro, int) or stages < 2 or micro < 1:
        return None
    if any(name in str(settings.get(SCHEDULE, "")).lower() for name in _NO_SIMPLE_BUBBLE):
        return None
    several = isinstance(chunks, int) and chunks > 1
    layout = PipelineLayout(
        schedule="interleaved" if several else "1f1b",
        ranks=stages,
        micro_batches=micro,
        chunks=chunks if isinstance(chunks, int) and several else 1,
    )
    return Pipeline(layout=layout, micro_batch=run.micro_batch, global_batch=run.global_batch)


@record
class StageBudget:
    """One stage's share of its rank's time, ns a step; of all stages of a rank together they sum to the step.

    send: nothing to receive, but its own messages have not left. receive: what the next computation needs exists, and is not
    there yet. idle: it does not exist yet, or nothing is left to compute.
    """

    stage: int
    rank: int
    blocks: int
    forward_ns: float
    backward_ns: float
    send_ns: float
    receive_ns: float
    idle_ns: float

    @property
    def busy_ns(self) -> float:
        return self.forward_ns + self.backward_ns


@dataclass(frozen=True)
class MeasuredPipeline:
    """One pipeline of a cell (the first, where several ranks hold a stage).

    steps: spans of all its ranks from the first one's start, by step; costs: of the model's pieces relative to each other;
    meeting: of :func:`stepscope.predict.pipeline.simulate`.
    """

    layout: PipelineLayout
    split: tuple[int, ...]
    steps: tuple[tuple[PipelineSpan, ...], ...]
    costs: tuple[float, ...]
    meeting: bool

    @cached_property
    def typical(self) -> tuple[PipelineSpan, ...]:
        """The step of median length."""
        return sorted(self.steps, key=_step_length_ns)[(len(self.steps) - 1) // 2]

    @cached_property
    def step_ns(self) -> float:
        """Median length of a schedule, from its first computation to its last."""
        return median(_step_length_ns(step) for step in self.steps)

    @cached_property
    def stages(self) -> tuple[StageBudget, ...]:
        """Where the time of each stage goes, ns, means over steps."""
        budgets = [_stage_budgets_ns(step, self.layout) for step in self.steps]
        return tuple(
            StageBudget(
                stage=stage,
                rank=rank,
                blocks=self.split[stage],
                **{part: fmean(budget[stage][part] for budget in budgets) for part in _PARTS},
            )
            for stage, rank in enumerate(self.layout.rank_of_stage)
        )

    @cached_property
    def bubble(self) -> Measured:
        """Share of the ranks' time in which they do not compute, messages included; median over steps, 95% interval."""
        shares = [
            1 - sum(s.end_ns - s.start_ns for s in step) / (self.layout.ranks * _step_length_ns(step))
            for step in self.steps
        ]
        return measured_median(shares)

    @cached_property
    def times(self) -> tuple[StageTime, ...]:
        """Median times of every stage for a micro-batch; mean times of messages whose receiver waited for them: from when
        they existed, or where ranks meet for them from when it was idle."""
        took: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        sent: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        for step in self.steps:
            for span in step:
                took[span.kind, span.stage].append(span.end_ns - span.start_ns)
            for (kind, stage), values in _message_ns(step, self.layout, meeting=self.meeting).items():
                sent[kind, stage] += values
        typical = {key: median(values) for key, values in took.items()}
        message = {key: fmean(values) for key, values in sent.items()}
        stage_times = []
        for stage in range(self.layout.stages):
            weight = typical.get(("W", stage))
            whole = typical.get(("B", stage), typical.get(("I", stage), 0.0) + (weight or 0.0))
            stage_times.append(
                StageTime(
                    forward_ns=typical["F", stage],
                    backward_ns=whole,
                    weight_ns=weight,
                    send_ns=message.get(("F", stage), 0.0),
                    send_back_ns=message.get(("B", stage), 0.0),
                )
            )
        return tuple(stage_times)

    @cached_property
    def simulated_bubble(self) -> float:
        """Simulated bubble of the schedule with every computation as long as it took, and these times of messages; median
        over steps.

        What is measured beyond it lies between computations: messages that wait for their sender or share their link, and
        what starting a computation takes.
        """
        lines = (simulate(self.layout, self.times, meeting=self.meeting, took_ns=took) for took in self.took_ns)
        return median(line.bubble for line in lines)

    @property
    def took_ns(self) -> tuple[tuple[tuple[float, ...], ...], ...]:
        """How long each computation took, ns, by step and rank, in the order of the schedule."""
        orders = pipeline_orders(self.layout)
        durations = (
            {(s.kind, s.stage, s.micro_batch): float(s.end_ns - s.start_ns) for s in step} for step in self.steps
        )
        return tuple(tuple(tuple(took[action] for action in order) for order in orders) for took in durations)

    @property
    def imbalance(self) -> float:
        """The slowest stage's time over the mean."""
        busy = [stage.busy_ns for stage in self.stages]
        return max(busy) / fmean(busy)

    @cached_property
    def balanced(self) -> tuple[tuple[int, ...], float]:
        """The split that evens the stages out, and the step it gives, by the simulation over this one's."""
        ends = list(accumulate(self.split, initial=0))
        costs: list[float] = []
        for (start, end), stage in zip(pairwise(ends), self.stages, strict=True):
            whole = sum(self.costs[start:end])
            costs += [cost * stage.busy_ns / whole for cost in self.costs[start:end]]
        split = balanced_split(costs, self.layout.stages)
        scale = [
            sum(costs[start:end]) / stage.busy_ns
            for (start, end), stage in zip(pairwise(accumulate(split, initial=0)), self.stages, strict=True)
        ]
        changed = [
            replace(
                stage_times,
                forward_ns=stage_times.forward_ns * factor,
                backward_ns=stage_times.backward_ns * factor,
                weight_ns=None if stage_times.weight_ns is None else stage_times.weight_ns * factor,
            )
            for stage_times, factor in zip(self.times, scale, strict=True)
        ]
        ours, theirs = (simulate(self.layout, times, meeting=self.meeting).step_ns for times in (changed, self.times))
        return split, ours / theirs


_SMALL = 0.10
_PARTS = ("forward_ns", "backward_ns", "send_ns", "receive_ns", "idle_ns")


def pipelines(cells: Iterable[CellEvidence]) -> list[tuple[CellEvidence, MeasuredPipeline]]:
    """Cells whose pipeline left a profile."""
    profiles = ((cell, measured_pipeline(cell.result)) for cell in cells if cell.run.status == "ok")
    return [(cell, pipeline) for cell, pipeline in profiles if pipeline is not None]


def bubble_text(bubble: Measured) -> str:
    """``34% [32, 36]``: with its interval, where there is one."""
    around = "" if bubble.low is None or bubble.high is None else f" [{100 * bubble.low:.0f}, {100 * bubble.high:.0f}]"
    return f"{format_percent(bubble.value)}{around}"


def conclusions(profiles: Iterable[tuple[CellEvidence, MeasuredPipeline]]) -> tuple[str, ...]:
    """Say what micro-batches do to the bubble, a sentence for each schedule that ran with several numbers of them."""
    groups: defaultdict[tuple[str, int, int], dict[int, MeasuredPipeline]] = defaultdict(dict)
    for _, pipeline in profiles:
        groups[pipeline.layout.schedule, pipeline.layout.ranks, pipeline.layout.chunks].setdefault(
            pipeline.layout.micro_batches, pipeline
        )
    return tuple(
        _bubble_sentence(*min(group.items()), *max(group.items())) for group in groups.values() if len(group) > 1
    )


def _bubble_sentence(few: int, first: MeasuredPipeline, many: int, last: MeasuredPipeline) -> str:
    """Say how the bubble changes from the fewest micro-batches to the most, and how many make it small."""
    low, high = last.bubble.low, first.bubble.low
    sure = high is not None and last.bubble.high is not None and low is not None and last.bubble.high < high
    change = "falls from" if sure else "does not surely fall: from"
    return (
        f"{last.layout.schedule} on {last.layout.ranks} ranks: the bubble {change} {bubble_text(first.bubble)} with {few} "
        f"micro-batches to {bubble_text(last.bubble)} with {many} (by the formula {format_percent(first.layout.bubble)} and "
        f"{format_percent(last.layout.bubble)}); {last.layout.micro_batches_for(_SMALL)} micro-batches make it "
        f"{format_percent(_SMALL)} by the formula"
    )


def measured_pipeline(cell: CellResult) -> MeasuredPipeline | None:
    """Return the cell's pipeline as it ran; None where it is no pipeline, or a rank of it left no profile."""
    first = next((s.pipeline for s in cell.summaries if s.pipeline is not None), None)
    if first is None:
        return None
    own = [
        s
        for s in cell.summaries
        if s.pipeline is not None
        and s.model_part not in {summary.model_part for summary in cell.summaries if summary.rank < s.rank}
    ]
    if len(own) != first.layout.ranks:
        return None
    # Hosts of an emulated network are this machine: one clock.
    one_clock = cell.spec.network is not None or len({summary.host for summary in own}) == 1
    steps: list[list[PipelineSpan]] = [[] for _ in first.steps]
    for summary in own:
        assert summary.pipeline is not None
        zero = 0 if one_clock else summary.pipeline.synced_ns
        for step, spans in zip(steps, summary.pipeline.steps, strict=True):
            step += [
                replace(s, rank=summary.model_part, start_ns=s.start_ns - zero, end_ns=s.end_ns - zero) for s in spans
            ]
    begun = [min(span.start_ns for span in step) for step in steps]
    from stepscope.predict.specs import specs_of  # a run of another tool has none

    specs = specs_of(cell.spec)
    return MeasuredPipeline(
        layout=first.layout,
        split=first.split,
        steps=tuple(
            tuple(replace(s, start_ns=s.start_ns - start, end_ns=s.end_ns - start) for s in step)
            for step, start in zip(steps, begun, strict=True)
        ),
        costs=tuple(float(piece.forward_flops_per_sample) for piece in specs.facts.pieces),
        meeting=meets(first.layout, device=cell.spec.device),
    )


def _step_length_ns(step: Sequence[PipelineSpan]) -> int:
    return max(span.end_ns for span in step) - min(span.start_ns for span in step)


def _made_at_ns(step: Sequence[PipelineSpan]) -> dict[tuple[str, int, int], int]:
    """Return when outputs (F) and gradients (B, I) existed: (kind, stage, micro-batch) -> end of its computation, ns."""
    return {("F" if s.kind == "F" else "B", s.stage, s.micro_batch): s.end_ns for s in step if s.kind != "W"}


def _needed_output(span: PipelineSpan, layout: PipelineLayout) -> tuple[str, int, int] | None:
    """Return what another rank makes for this computation: (kind, stage, micro-batch), or None."""
    if span.kind == "W":
        return None
    kind, stage = ("F", span.stage - 1) if span.kind == "F" else ("B", span.stage + 1)
    if not 0 <= stage < layout.stages or layout.rank_of_stage[stage] == layout.rank_of_stage[span.stage]:
        return None
    return kind, stage, span.micro_batch


def _spans_by_rank(step: Sequence[PipelineSpan]) -> dict[int, list[PipelineSpan]]:
    return grouped(sorted(step, key=lambda s: s.start_ns), lambda s: s.rank)


def _message_ns(
    step: Sequence[PipelineSpan], layout: PipelineLayout, *, meeting: bool
) -> dict[tuple[str, int], list[int]]:
    """Return by kind and sending stage how long messages took, ns, whose receiver did nothing but wait."""
    made, lengths = _made_at_ns(step), defaultdict[tuple[str, int], list[int]](list)
    for spans in _spans_by_rank(step).values():
        for before, span in zip([0, *(span.end_ns for span in spans)], spans, strict=False):
            source = _needed_output(span, layout)
            if source is not None and (meeting or made[source] >= before):
                lengths[source[0], source[1]].append(max(0, span.start_ns - max(made[source], before)))
    return lengths


def _stage_budgets_ns(step: Sequence[PipelineSpan], layout: PipelineLayout) -> list[dict[str, float]]:
    """Return the time of each stage by part, ns: times between computations belong to the one that follows, those at the end
    to the last one."""
    made, end = _made_at_ns(step), max(span.end_ns for span in step)
    budgets = [dict.fromkeys(_PARTS, 0.0) for _ in range(layout.stages)]
    for spans in _spans_by_rank(step).values():
        at = 0
        for span in spans:
            of = budgets[span.stage]
            of["forward_ns" if span.kind == "F" else "backward_ns"] += span.end_ns - span.start_ns
            source = _needed_output(span, layout)
            ready = at if source is None else min(max(made[source], at), span.start_ns)
            of["idle_ns"] += ready - at
            of["send_ns" if source is None else "receive_ns"] += span.start_ns - ready
            at = span.end_ns
        budgets[spans[-1].stage]["idle_ns"] += end - at
    return budgets
