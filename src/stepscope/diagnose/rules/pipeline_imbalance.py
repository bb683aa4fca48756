"""One stage of a pipeline computes longer than the others, which wait for it.

What
----
Ranks that exchange messages (send, receive) in a pipeline's groups are its stages, in order of rank; ranks of several
pipelines side by side share a stage. Fires when the slowest stage computes 1.15 times as long as the median of the
others, and evening out would return 5% of the window. Of a `pipeline` cell of `bench` the stages are known, and the split of
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
METRICS, Pipeline.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from statistics import fmean, median
from typing import TYPE_CHECKING

from stepscope.core.units import format_duration, format_percent
from stepscope.diagnose.frameworks import in_words_of, used_in
from stepscope.diagnose.outcome import Statement, together
from stepscope.diagnose.rule import Rule, Threshold
from stepscope.diagnose.trace_facts import read_in_full, severity_of, trace_command, unread, window_ns
from stepscope.records.finding import Advice, Finding, Skipped
from stepscope.records.trace_summary import RankPass, TraceSummary
from stepscope.results.evidence import CellEvidence, Evidence, TraceEvidence
from stepscope.results.pairs import name_of

if TYPE_CHECKING:
    from stepscope.results.pipeline_profile import MeasuredPipeline

_SLOW = Threshold(
    value=1.15,
    unit="times the median of the other stages",
    source="stepscope's choice, 2026-11: beyond noise of devices",
)
_WORTH = Threshold(value=0.05, unit="share of the window", source="stepscope's choice, 2026-11: layers can be moved")
_SHOWN = 8


def _check(evidence: Evidence) -> Statement:
    from stepscope.results.pipeline_profile import pipelines  # `trace` starts without what reads cells

    found = [_of_cell(cell, measured) for cell, measured in pipelines(evidence.cells)]
    return together(found) if found else Skipped(reason="no pipeline among the cells")


def _of_cell(cell: CellEvidence, found: MeasuredPipeline) -> Statement:
    """By what a better split would bring, simulated."""
    busy = [stage.busy_ns for stage in found.stages]
    slowest = max(range(len(busy)), key=busy.__getitem__)
    ratio = busy[slowest] / max(median(b for i, b in enumerate(busy) if i != slowest), 1.0)
    split, step = found.balanced
    share = 1.0 - step
    if ratio < _SLOW.value or share < _WORTH.value:
        return (
            f"{name_of(cell.run)}: stage {slowest} computes {ratio:.2f} times as long as the others; evening out returns "
            f"{format_percent(max(share, 0.0))} of the time, limits {_SLOW.value} and {format_percent(_WORTH.value)}"
        )
    now, better = (f"[{', '.join(map(str, each))}]" for each in (found.split, split))
    shown = " ".join(f"{i}: {format_duration(b)}" for i, b in enumerate(busy[:_SHOWN]))
    return Finding(
        severity=severity_of(share),
        title=f"pipeline stage {slowest} of {len(busy)} computes {ratio:.1f} times as long as the others: "
        f"{format_percent(share)} of the time",
        evidence=(f"stage: time of its computations in a step: {shown}", f"blocks of the stages: {now}"),
        stake_fraction=share,
        ranks=(found.stages[slowest].rank,),
        confidence="measured; what the split brings is simulated, with blocks as their FLOP say",
        advice=(Advice(text=f"split the blocks as {better}: `strategy_options: {{split: {better}}}`"),),
        subject=name_of(cell.run),
    )


def _look(job: TraceEvidence) -> Statement:
    ranks = {p.facts.rank: p for p in read_in_full(job.summary)}
    if not ranks:
        return unread(job.summary, "no rank was read in full")
    chains = _chains(job.summary)
    if not chains:
        return Skipped(reason="no pipeline: no group carries messages between stages alone")
    if any(rank not in ranks for chain in chains for rank in chain) or len({len(c) for c in chains}) > 1:
        return Skipped(reason="a pipeline's stages are not all among the traces")
    stages = [[ranks[chain[i]] for chain in chains] for i in range(len(chains[0]))]
    compute = [median(_compute(p) for p in stage) for stage in stages]
    slowest = max(range(len(stages)), key=compute.__getitem__)
    others = median(c for i, c in enumerate(compute) if i != slowest)
    window = median(window_ns(p) for stage in stages for p in stage)
    ratio, share = compute[slowest] / max(others, 1), (compute[slowest] - fmean(compute)) / window
    if ratio < _SLOW.value or share < _WORTH.value:
        return (
            f"stage {slowest} of {len(stages)} computes {ratio:.2f} times as long as the others; evening out returns "
            f"{format_percent(max(share, 0.0))} of the time, limits {_SLOW.value} and {format_percent(_WORTH.value)}"
        )
    bubbles = [median(_bubble(p) for p in stage) for stage in stages]
    shown = " ".join(
        f"{i}: {format_duration(compute[i])} {format_percent(bubbles[i])}" for i in range(len(stages))[:_SHOWN]
    )
    where = ", ".join(str(p.facts.rank) for p in stages[slowest][:_SHOWN])
    return Finding(
        severity=severity_of(share),
        title=f"pipeline stage {slowest} of {len(stages)} (rank {where}) computes {ratio:.1f} times as long as the others: "
        f"{format_percent(share)} of the time",
        evidence=(
            f"stage: compute, bubble (idle, and messages under no computation): {shown}",
            *_cause(stages, slowest),
        ),
        stake_fraction=min(1.0, share),
        ranks=tuple(p.facts.rank for p in stages[slowest]),
        confidence="measured; what even stages would return at most",
        advice=(
            *(
                (
                    Advice(
                        text="check its device first (clocks, other processes): it runs no more kernels than the others"
                    ),
                )
                if _as_many(stages, slowest)
                else ()
            ),
            Advice(
                text="if its layers are larger, move some to the others; embedding, head and loss count as layers"
                if _as_many(stages, slowest)
                else "move layers from this stage to the others; embedding, head and loss count as layers"
            ),
            *in_words_of("balance stages", used_in(job.summary)),
            Advice(
                text="compare its kernels with another stage's",
                command=trace_command(job, "--show kernels,groups,idle"),
            ),
        ),
        subject=f"stage {slowest}",
    )


def _compute(each: RankPass) -> int:
    return each.budget.parts.compute_ns if each.budget else 0


def _bubble(each: RankPass) -> float:
    """Share of the window in which the rank idles, or waits in a message that nothing covers."""
    assert each.budget is not None
    messages = sum(g.exposed_ns for g in each.groups if g.kind == "pp")
    return (min(messages, each.budget.parts.exposed_comm_ns) + each.budget.parts.idle_ns) / window_ns(each)


def _more_kernels(stages: list[list[RankPass]], slowest: int) -> float | None:
    """How many times the kernels of the other stages the slowest runs; None where no kernel was recorded."""
    calls = [[p.mix.calls for p in stage if p.mix is not None] for stage in stages]
    if not all(calls):
        return None
    return median(calls[slowest]) / max(1.0, median(n for i, mine in enumerate(calls) for n in mine if i != slowest))


def _as_many(stages: list[list[RankPass]], slowest: int) -> bool:
    ratio = _more_kernels(stages, slowest)
    return ratio is not None and ratio < _SLOW.value


def _cause(stages: list[list[RankPass]], slowest: int) -> tuple[str, ...]:
    """Whether the stage runs more kernels, or longer ones; nothing where no kernel was recorded."""
    ratio = _more_kernels(stages, slowest)
    if ratio is None:
        return ()
    if ratio >= _SLOW.value:
        return (f"it runs {ratio:.1f} times as many kernels: it holds more layers",)
    return ("it runs as many kernels, which take longer: larger layers, or a slower device",)


def _chains(summary: TraceSummary) -> list[tuple[int, ...]]:
    """Ranks that exchange messages in groups that carry nothing else, connected, ascending."""
    linked: dict[int, set[int]] = defaultdict(set)
    for each in summary.ranks:
        pipes = {g.group for g in each.groups if g.kind == "pp"}
        only = len(each.groups) == len(pipes)
        for call in each.communication.collectives if each.communication and pipes else ():
            if call.op != "send_recv" or call.group is None or call.group.name not in pipes:
                continue
            ranks: Iterable[int] = call.peers or call.group.ranks or ()
            whole = call.peers is None and len(tuple(ranks)) == summary.world_size and not only
            for other in () if whole else ranks:
                linked[each.facts.rank].add(other)
                linked[other].add(each.facts.rank)
    chains: list[tuple[int, ...]] = []
    left = set(linked)
    while left:
        chain, edge = set[int](), {min(left)}
        while edge:
            chain |= edge
            edge = {n for rank in edge for n in linked[rank]} - chain
        left -= chain
        if len(chain) > 1:
            chains.append(tuple(sorted(chain)))
    return chains


RULE = Rule(
    symptom="one pipeline stage computes longer than the others",
    any_of=("cells", "traces"),
    look=_check,
    look_at_job=_look,
    folded=True,
    protocol=2,
    thresholds={"slow": _SLOW, "of the window": _WORTH},
)
