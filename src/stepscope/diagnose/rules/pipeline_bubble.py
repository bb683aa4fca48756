"""Too few micro-batches for the pipeline: its stages idle while it fills and drains.

What
----
Runs whose source states pipeline stages p and micro-batches m of a step. With stages of equal length and free
point-to-point messages, GPipe and 1F1B idle (p - 1) / (m + p - 1) of the step; interleaved schedules with v chunks per
rank (p - 1) / (v m + p - 1). Fires above {bubble}. Of runs of `bench` the bubble is measured: the share of the ranks'
time from the first computation of a schedule to its last in which they compute nothing; of others the configuration
decides. Of traces of all stages it is measured too: idle time, and messages under no computation, of the median stage;
the micro-batches are as the job recorded, else half of the messages that an outer stage exchanges a step. What slow ranks
cost is left out of it, down to what the formula gives.

Why
---
16 stages with 4 micro-batches idle 79% of the step, on every rank, however fast the network is.

Known problems
--------------
Unequal stages and exposed messages increase the bubble. Zero-bubble schedules (ZBV, DualPipe) of other tools' runs fill it
with weight gradients and are not judged. A ramped batch has no single number of micro-batches.

References
----------
metrics.md, One pipeline. Narayanan et al., Efficient large-scale language model training on GPU clusters, SC
2021, sections 2.2.1 and 2.2.2 (which give the bubble over the ideal time, (p - 1) / m).
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING

from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.diagnose.bounds import OF_STEP
from stepscope.diagnose.frameworks import in_words_of, option, used_in
from stepscope.diagnose.rule import Advices, Finding, Rule, Statement, advise, finding, skipped
from stepscope.diagnose.trace_facts import window_ns
from stepscope.diagnose.unit_facts import SLOW, traced_pipeline
from stepscope.records.finding import Skipped
from stepscope.records.mesh import PipelineLayout
from stepscope.records.trace_summary import TraceSummary
from stepscope.results.evidence import CellEvidence, Evidence, TraceEvidence, name_of

if TYPE_CHECKING:
    from stepscope.results.pipeline import MeasuredPipeline

SHOWN = 8


def check(evidence: Evidence) -> Statement:
    """Look for: too few micro-batches for so many pipeline stages."""
    from stepscope.results.pipeline import pipeline_of, pipelines  # `trace` starts without what reads runs and cells

    ran = pipelines(evidence.cells)
    of_cells = {cell.run.run_id for cell, _ in ran}
    judged = [(pipeline.bubble.value, cell.run, _bubble_finding(cell, pipeline)) for cell, pipeline in ran]
    for run in evidence.runs:
        stated = None if run.run_id in of_cells else pipeline_of(run)
        if stated is not None:
            layout = stated.layout
            chunks = f", {layout.chunks} chunks a rank" if layout.chunks > 1 else ""
            computed = finding(
                f"{format_percent(layout.bubble)} of the step is pipeline bubble: {layout.ranks} stages, "
                f"{layout.micro_batches} micro-batches",
                f"{layout.formula} = {format_percent(layout.bubble)}{chunks}",
                stake=layout.bubble,
                confidence="computed from the configuration: stages of equal length, free messages; the real bubble is "
                "larger",
                advice=_micro_batch_advice(layout, stated.micro_batch, stated.global_batch),
                of=name_of(run),
            )
            judged.append((layout.bubble, run, computed))
    if not judged:
        return skipped(
            "no run states its pipeline stages and micro-batches, or its schedule has no simple formula for the bubble"
        )
    worst, run, _ = max(judged, key=lambda row: row[0])
    limit = format_percent(OF_STEP)
    return [report for bubble, _, report in judged if bubble > OF_STEP] or (
        f"{name_of(run)}: the pipeline idles {format_percent(worst)} of the step, limit {limit}"
    )


def _bubble_finding(cell: CellEvidence, pipeline: MeasuredPipeline) -> Finding:
    """Return the finding of a cell's bubble, beside what its formula gives."""
    layout, bubble = pipeline.layout, pipeline.bubble
    around = "" if bubble.low is None or bubble.high is None else (
        f" (95% interval {format_percent(bubble.low)} to {format_percent(bubble.high)})"
    )  # fmt: skip
    messages = sum(stage.send_ns + stage.receive_ns for stage in pipeline.stages) / (layout.ranks * pipeline.step_ns)
    enough = f"{layout.micro_batches} micro-batches are enough by the formula"
    return finding(
        f"{format_percent(bubble.value)} of the schedule is pipeline bubble: {layout.ranks} ranks, "
        f"{layout.micro_batches} micro-batches",
        f"measured {format_percent(bubble.value)}{around} with {layout.schedule}; equal stages and free messages would "
        f"give {layout.formula} = {format_percent(layout.bubble)}",
        f"simulated with measured computations and messages: {format_percent(pipeline.simulated_bubble)}; waiting "
        f"for messages is {format_percent(messages)}, the slowest stage takes {pipeline.imbalance:.2f} times the mean",
        stake=bubble.value,
        advice=_micro_batch_advice(layout, cell.spec.micro_batch // layout.micro_batches, cell.spec.global_batch)
        if layout.bubble > OF_STEP
        else [f"{enough}: look at messages and at unequal stages"],
        of=cell.run,
    )


def _micro_batch_advice(layout: PipelineLayout, micro_batch: int | None, global_batch: int | None) -> Iterator[Advices]:
    """Yield what makes the bubble small: more micro-batches, smaller or of a larger batch."""
    wanted = layout.micro_batches_for(OF_STEP)
    yield advise(
        f"use {wanted} micro-batches or more: the bubble is then at most {format_percent(OF_STEP)}", key="micro-batches"
    )
    if global_batch is not None:
        larger = -(-global_batch * wanted // layout.micro_batches)
        yield advise(
            f"with the same micro-batch size the global batch is {larger} (now {global_batch})", key="micro-batches"
        )
    if micro_batch is not None and micro_batch > 1:
        most = micro_batch * layout.micro_batches
        yield advise(f"with the same global batch, micro-batches of 1 sample give {most} of them", key="micro-batches")
    if layout.chunks == 1 and layout.schedule in ("gpipe", "1f1b"):
        yield advise(
            "use an interleaved schedule: v chunks of layers a rank divide the bubble by about v",
            key="interleave stages",
        )
    yield advise("use fewer stages if the model fits with more tensor or sharded data parallelism", key="fewer stages")


def _pipeline_bubble_of_job(job: TraceEvidence) -> Statement:
    """Look in one traced job for: too few micro-batches for so many pipeline stages."""
    traced = traced_pipeline(job.summary)
    if isinstance(traced, Skipped):
        return traced
    stages, bubbles = len(traced.stages), traced.bubbles
    measured, m = median(bubbles), traced.micro_batches
    layout = None if m is None else PipelineLayout(
        schedule="1f1b" if traced.chunks == 1 else "interleaved", ranks=stages, micro_batches=m, chunks=traced.chunks
    )  # fmt: skip
    late = _late_rank_share(job.summary)
    # Stages wait for late ranks in messages and elsewhere: the schedule's own bubble is left.
    least = min(measured, layout.bubble * (1 - late)) if layout is not None else 0.0
    bubble = max(measured - late, least)
    batches = "" if m is None else f", {counted(m, 'micro-batch')}"
    limit = format_percent(OF_STEP)
    if bubble <= OF_STEP:
        return f"{stages} stages{batches}: they idle {format_percent(bubble)} of the step, limit {limit}"
    slowest, used = traced.slowest, used_in(job.summary)
    few = layout is None or layout.bubble > OF_STEP
    more = "use more micro-batches a step" if layout is None else (
        f"use {layout.micro_batches_for(OF_STEP)} micro-batches or more: the bubble is then at most {limit} with "
        "equal stages"
    )  # fmt: skip
    interleaved = option("interleave stages", used, plain="ScheduleInterleaved1F1B with several stages a rank")
    enough = "" if few else f"{layout.micro_batches if layout else 'its'} micro-batches are enough: "
    uneven = traced.ratio >= SLOW
    return finding(
        f"pipeline bubble: {format_percent(bubble)} of the step, {stages} stages{batches}",
        layout is not None
        and f"equal stages and free messages would give {layout.formula} = {format_percent(layout.bubble)}",
        "stage: compute, bubble (idle, and messages under no computation): "
        + " ".join(
            f"{i}: {format_duration(c)} {format_percent(b)}"
            for i, (c, b) in enumerate(zip(traced.compute_ns[:SHOWN], bubbles[:SHOWN], strict=True))
        ),
        uneven and f"stage {slowest} limits: it computes {traced.ratio:.2f}x the others' time",
        late > 0
        and f"measured {format_percent(measured)}, of which late ranks cost {format_percent(late)} (straggler)",
        stake=min(1.0, bubble),
        ranks=tuple(p.facts.rank for p in traced.stages[slowest]) if uneven else (),
        confidence="measured, median stage",
        advice=[  # more micro-batches only where these are few, a balance where a stage is slower
            few and (advise(more, key="micro-batches"), *in_words_of("micro-batches", used)),
            few
            and (layout is None or layout.chunks == 1)
            and advise(f"or an interleaved schedule, which divides the bubble: {interleaved}", key="interleave stages"),
            uneven
            and (
                advise("balance the stages: the others wait for the one that limits", key="balance stages"),
                *in_words_of("balance stages", used),
            ),
            (f"{enough}see which messages stages wait for", "--show groups,idle,collectives"),
        ],
    )


def _late_rank_share(summary: TraceSummary) -> float:
    """Share of the window that ranks cost which are slower than the others of their stage: no schedule returns it."""
    late = summary.stragglers.stragglers if summary.stragglers is not None else ()
    windows = [window_ns(p) for p in summary.ranks if p.budget is not None]
    return min(1.0, sum(s.saved_ns for s in late) / median(windows)) if windows else 0.0


RULE = Rule(
    symptom="too few micro-batches for so many pipeline stages",
    any_of=("runs", "traces"),
    look=check,
    look_at_job=_pipeline_bubble_of_job,
    folded=True,
    claims=("communication",),
    kind="pipeline-bubble",
    rests_on=("idle",),
    protocol=2,
    thresholds={"bubble": OF_STEP},
)
