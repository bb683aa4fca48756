"""Too few micro-batches for the pipeline: its stages idle while it fills and drains.

What
----
Runs whose source states pipeline stages p and micro-batches m of a step. With stages of equal length and free
point-to-point messages, GPipe and 1F1B idle (p - 1) / (m + p - 1) of the step; interleaved schedules with v chunks per
rank (p - 1) / (v m + p - 1). Fires above 10%. Nothing is timed: the configuration alone decides.

Why
---
16 stages with 4 micro-batches idle 79% of the step, on every rank, however fast the network is.

Known problems
--------------
Unequal stages and exposed messages increase the bubble. Zero-bubble schedules (ZBV, DualPipe) fill it with weight
gradients and are not judged. A ramped batch has no single number of micro-batches.

References
----------
METRICS, Pipeline. Narayanan et al., Efficient large-scale language model training on GPU clusters using Megatron-LM, SC
2021, sections 2.2.1 and 2.2.2 (which give the bubble over the ideal time, (p - 1) / m).
"""

from __future__ import annotations

from stepscope.core.units import format_percent
from stepscope.diagnose.outcome import Said
from stepscope.diagnose.rule import Rule, Threshold
from stepscope.diagnose.trace_facts import severity_of
from stepscope.records.finding import Advice, Finding, Skipped
from stepscope.results.evidence import Evidence
from stepscope.results.pairs import name_of
from stepscope.results.pipeline import Pipeline, pipeline_of

MOST = Threshold(
    value=0.10,
    unit="share of the step",
    source="as for exposed communication: removing less gains at most a factor of 1.11",
)


def check(evidence: Evidence) -> Said:
    judged = [(name_of(run), stated) for run in evidence.runs if (stated := pipeline_of(run)) is not None]
    if not judged:
        return Skipped(
            reason="no run states its pipeline stages and micro-batches, or its schedule has no simple formula for "
            "the bubble"
        )
    found = [_finding(name, each) for name, each in judged if each.bubble > MOST.value]
    if found:
        return found
    name, worst = max(judged, key=lambda each: each[1].bubble)
    return f"{name}: the pipeline idles {format_percent(worst.bubble)} of the step, limit {format_percent(MOST.value)}"


def _finding(name: str, each: Pipeline) -> Finding:
    chunks = f", {each.chunks} chunks a rank" if each.chunks > 1 else ""
    wanted = each.micro_batches_for(MOST.value)
    advice = [
        Advice(text=f"use {wanted} micro-batches or more: the bubble is then at most {format_percent(MOST.value)}")
    ]
    if each.global_batch is not None:
        larger = -(-each.global_batch * wanted // each.micro_batches)
        advice.append(
            Advice(text=f"with the same micro-batch size the global batch is {larger} (now {each.global_batch})")
        )
    if each.micro_batch is not None and each.micro_batch > 1:
        most = each.micro_batch * each.micro_batches
        advice.append(Advice(text=f"with the same global batch, micro-batches of 1 sample give {most} of them"))
    if each.chunks == 1:
        advice.append(
            Advice(text="use an interleaved schedule: v chunks of layers a rank divide the bubble by about v")
        )
    advice.append(Advice(text="use fewer stages if the model fits with more tensor or sharded data parallelism"))
    return Finding(
        severity=severity_of(each.bubble),
        title=f"{format_percent(each.bubble)} of the step is pipeline bubble: {each.stages} stages, {each.micro_batches} "
        "micro-batches",
        evidence=(f"{each.formula} = {format_percent(each.bubble)}{chunks}",),
        stake_fraction=each.bubble,
        confidence="computed from the configuration: stages of equal length, free messages; the real bubble is larger",
        advice=tuple(advice),
        subject=name,
    )


RULE = Rule(
    name="pipeline-bubble",
    symptom="too few micro-batches for so many pipeline stages",
    needs=("runs",),
    look=check,
    folded=True,
    protocol=2,
    thresholds={"bubble": MOST},
)
