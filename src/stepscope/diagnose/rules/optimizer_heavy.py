"""The optimizer takes a large share of the step.

What
----
Share of the step from usable gradients to updated parameters, slowest rank, median over steps.

Why
---
The update reads and writes each parameter, its gradient and the optimizer state once, regardless of the batch, and
every rank updates its full replica, so the time does not shrink with more ranks. It is large if the batch is small for
the model or if the update runs one kernel per tensor.

Known problems
--------------
Gradient clipping and loss scaling are part of the phase. So are ZeRO-1's broadcasts of updated parameters: how its time
splits is seen in traces.

References
----------
torch.optim: fused and foreach implementations. Rajbhandari et al., ZeRO, SC20 (stage 1: each rank updates 1/n).
"""

from __future__ import annotations

from stepscope.core.units import format_count, format_duration, format_percent
from stepscope.core.words import counted
from stepscope.diagnose.commands import again
from stepscope.diagnose.rule import Limit, Rule, Statement, advise, over_share
from stepscope.diagnose.trace_facts import WORTH
from stepscope.records.finding import Finding
from stepscope.results.cell_facts import TimedCell, measured, others, traced
from stepscope.results.evidence import Evidence

MIN_SHARE = Limit(
    value=2 * WORTH,
    unit="share of the step",
    source="accumulation over 2 micro-steps halves it, and so returns what is worth a finding",
)

SENDS_INSIDE = frozenset({"zero1"})
"""Strategies whose plan has collectives in the phase of the optimizer."""


def check(evidence: Evidence) -> Statement:
    return over_share(evidence, "optimizer", MIN_SHARE.value, _report, spent="of the step")


def _report(evidence: Evidence, ranked: list[TimedCell]) -> Finding:
    cell = ranked[0]
    spec, parameters = cell.cell.spec, cell.cell.run.num_parameters
    share = cell.share("optimizer")
    size = "" if parameters is None else f" over {format_count(parameters)} parameters"
    sentences = [
        f"{format_duration(cell.phases.optimizer_ns)} of {format_duration(cell.step_ns)}: {spec.optimizer}{size}, "
        f"once for {counted(spec.global_batch, 'sample')}"
    ]
    if spec.clip is not None:
        sentences.append(f"this includes clipping to a norm of {spec.clip:g}")
    title = f"{format_percent(share)} of the step is the optimizer update"
    if sends := spec.strategy in SENDS_INSIDE and cell.world_size > 1:
        title += " and the broadcasts of new parameters"
        sentences.append(
            f"{spec.strategy} sends the updated parameters in this phase: how much of it is transfer, traces show"
        )
    advice = [
        advise(
            "update less often: accumulate gradients over several micro-steps (the global batch grows with it)",
            again(
                evidence,
                cell.cell,
                ("accumulation", 2 * spec.accumulation),
                *((("global_batch", 2 * spec.global_batch),) if spec.batch_rule == "global_batch" else ()),
            ),
        )
    ]
    if spec.device == "cuda" and not sends:
        advice.append(advise(f"use one kernel for all tensors: torch.optim.{_name(spec.optimizer)}(..., fused=True)"))
    if cell.world_size > 1:
        n = cell.world_size
        advice.append(
            advise(
                f"shard the update (ZeRO stage 1): each rank updates 1/{n}, up to "
                f"{format_percent(share * (n - 1) / n)} of the step, for the time of an all-gather",
                only_for=("replicated",),
            )
        )
    return Finding(
        severity="warning",
        title=title,
        evidence=(*sentences, *others(ranked, lambda other: f"({format_percent(other.share('optimizer'))})")),
        stake_fraction=share,
        confidence=f"{measured(cell)}; the gain depends on the remedy",
        advice=tuple(advice),
        subject=cell.name,
        job=traced(evidence, cell),
        runs=(cell.cell.run.run_id,),
    )


def _name(optimizer: str) -> str:
    return {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}.get(optimizer, optimizer)


RULE = Rule(
    symptom="the optimizer takes a large share of the step",
    needs=("cells",),
    look=check,
    claims=("step/computation/memory/optimizer",),
    kind="optimizer-bound",
    protocol=2,
    thresholds={"share": MIN_SHARE},
)
