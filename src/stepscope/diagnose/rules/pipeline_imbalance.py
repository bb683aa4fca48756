"""One stage of a pipeline computes longer than the others, which wait for it.

What
----
Ranks that exchange messages (send, receive) in a pipeline's groups are its stages, in order of rank; ranks of several
pipelines side by side share a stage. Fires when the slowest stage computes {slow},
and evening out would return {of the step}. Of a `pipeline` cell of `bench` the stages are known, and the split of
its blocks that evens them out is simulated. The bubble is what a stage measured: idle time and messages under
no computation.

Why
---
In steady state every stage takes as long as the slowest. Even stages take the mean.

Known problems
--------------
An even pipeline has a bubble too (`pipeline-bubble`). Rings of messages (context parallelism) count as pipelines unless
their groups are named. Of a slow stage, more layers and a slower device look alike where kernels are not recorded.

References
----------
Narayanan et al., Efficient large-scale language model training on GPU clusters using Megatron-LM, SC 2021, section 2.2;
docs/reference/metrics.md, One pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median
from typing import TYPE_CHECKING

from stepscope.core.units import format_duration, format_percent
from stepscope.diagnose.frameworks import in_words_of, used_in
from stepscope.diagnose.rule import Limit, Rule, Statement, advise, finding, skipped, together
from stepscope.diagnose.trace_facts import window_ns
from stepscope.diagnose.unit_facts import SLOW, traced_pipeline
from stepscope.records.finding import Skipped
from stepscope.records.trace_summary import RankPass
from stepscope.results.evidence import CellEvidence, Evidence, TraceEvidence, name_of

if TYPE_CHECKING:
    from stepscope.results.pipeline import MeasuredPipeline

_SLOW = Limit(
    SLOW, unit="times the median of the other stages", source="stepscope's choice, 2026-11: beyond noise of devices"
)
_WORTH = Limit(0.05, unit="share of the step", source="stepscope's choice, 2026-11: layers can be moved")
_SHOWN = 8


def _pipeline_imbalance_statement(evidence: Evidence) -> Statement:
    from stepscope.results.pipeline import pipelines  # `trace` starts without what reads cells

    statements = [_pipeline_imbalance_of_cell(cell, measured) for cell, measured in pipelines(evidence.cells)]
    return together(statements) if statements else skipped("no pipeline among the cells")


def _even_text(who: str, ratio: float, share: float) -> str | None:
    """Say of a slowest stage that evening out is not worth while; None where it is."""
    if ratio >= _SLOW and share >= _WORTH:
        return None
    return (
        f"{who} computes {ratio:.2f} times as long as the others; evening out returns {_WORTH.of(max(share, 0.0))}, "
        f"limits {_SLOW:g} and {format_percent(_WORTH)}"
    )


def _pipeline_imbalance_of_cell(cell: CellEvidence, pipeline: MeasuredPipeline) -> Statement:
    """Judge a cell by what a better split would bring, simulated."""
    busy = [stage.busy_ns for stage in pipeline.stages]
    slowest = max(range(len(busy)), key=busy.__getitem__)
    ratio = busy[slowest] / max(median(b for i, b in enumerate(busy) if i != slowest), 1.0)
    split, step = pipeline.balanced
    share = 1.0 - step
    now, better = (f"[{', '.join(map(str, blocks))}]" for blocks in (pipeline.split, split))
    shown = " ".join(f"{i}: {format_duration(b)}" for i, b in enumerate(busy[:_SHOWN]))
    return _even_text(f"{name_of(cell.run)}: stage {slowest}", ratio, share) or finding(
        f"pipeline stage {slowest} of {len(busy)} computes {ratio:.1f} times as long as the others: {_WORTH.of(share)}",
        f"stage: time of its computations in a step: {shown}",
        f"blocks of the stages: {now}",
        stake=share,
        ranks=(pipeline.stages[slowest].rank,),
        confidence="measured; what the split brings is simulated, with blocks as their FLOP say",
        advice=[advise(f"split the blocks as {better}: `strategy_options: {{split: {better}}}`", key="balance stages")],
        of=cell.run,
    )


def _pipeline_imbalance_of_job(job: TraceEvidence) -> Statement:
    """Look in one traced job for: one pipeline stage computes longer than the others."""
    traced = traced_pipeline(job.summary)
    if isinstance(traced, Skipped):
        return traced
    stages, compute, slowest, ratio = traced.stages, traced.compute_ns, traced.slowest, traced.ratio
    share = (compute[slowest] - fmean(compute)) / median(window_ns(p) for stage in stages for p in stage)
    shown = "; ".join(
        f"{i}: {format_duration(ns)}, {format_percent(bubble)}"
        for i, (ns, bubble) in enumerate(list(zip(compute, traced.bubbles, strict=True))[:_SHOWN])
    )
    ranks = tuple(p.facts.rank for p in stages[slowest])
    where = ", ".join(map(str, ranks[:_SHOWN]))
    kernels = _more_kernels(stages, slowest)
    as_many = kernels is not None and kernels < _SLOW
    larger = (
        "if its layers are larger, move some to the others" if as_many else "move layers from this stage to the others"
    )
    return _even_text(f"stage {slowest} of {len(stages)}", ratio, share) or finding(
        f"pipeline imbalance: stage {slowest} (rank {where}) computes {ratio:.2f}x the others' time, {_WORTH.of(share)}",
        f"compute and bubble (idle, and messages under no computation) by stage: {shown}",
        as_many and "it runs as many kernels, which take longer: larger layers, or a slower device",
        kernels is not None and not as_many and f"it runs {kernels:.1f} times as many kernels: it holds more layers",
        stake=min(1.0, share),
        ranks=ranks,
        confidence="measured; what even stages would return at most",
        advice=[
            as_many and "check its device first (clocks, other processes): it runs no more kernels than the others",
            advise(f"{larger}; embedding, head and loss count as layers", key="balance stages"),
            in_words_of("balance stages", used_in(job.summary)),
            ("compare its kernels with another stage's", "--show kernels,groups,idle"),
        ],
        of=f"stage {slowest}",
    )


def _more_kernels(stages: Sequence[Sequence[RankPass]], slowest: int) -> float | None:
    """Return how many times the others' kernels the slowest stage runs; None where no kernel was recorded."""
    calls = [[p.mix.calls for p in stage if p.mix is not None] for stage in stages]
    if not all(calls):
        return None
    return median(calls[slowest]) / max(1.0, median(n for i, call in enumerate(calls) for n in call if i != slowest))


RULE = Rule(
    symptom="one pipeline stage computes longer than the others",
    any_of=("cells", "traces"),
    look=_pipeline_imbalance_statement,
    look_at_job=_pipeline_imbalance_of_job,
    folded=True,
    claims=("communication", "waiting"),
    within=("pipeline-bubble",),
    kind="pipeline-bubble",
    rests_on=("classes", "idle"),
    protocol=2,
    thresholds={"slow": _SLOW, "of the step": _WORTH},
)
