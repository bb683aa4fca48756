"""Most kernels are so short that launching them takes as long as running them.

What
----
Share of compute kernels of at most 10 us, by number, and the share of the window that they and the gaps between queued
kernels take. Fires if they are at least half of all kernels and take a tenth of the time.

Why
---
A launch costs the host 5 to 10 us and the device a gap of 1 to 5 us. Work in pieces of that size runs at the speed of
launching, whatever the GPU can do.

Known problems
--------------
Of short kernels that run under long ones on another stream only what no long kernel covers counts. The stake is their
current time, which fusing does not remove completely.

References
----------
A. Gray, Getting Started with CUDA Graphs, NVIDIA developer blog, 2019; PyTorch performance tuning guide, Fuse
operations; document 004's checklist, "Batch size sufficient?".
"""

from __future__ import annotations

from stepscope.core.units import format_duration, format_percent
from stepscope.diagnose.frameworks import option, used_in
from stepscope.diagnose.job_facts import AdviceFor
from stepscope.diagnose.rule import Rule, Statement
from stepscope.diagnose.trace_facts import (
    MOSTLY_SHORT,
    SHARES,
    WORTH,
    Part,
    idle_share,
    on_device,
    trace_command,
    unread,
    window_ns,
)
from stepscope.records.finding import Advice
from stepscope.records.trace_rules import KernelMix
from stepscope.records.trace_summary import RankPass
from stepscope.results.evidence import TraceEvidence


def _look(job: TraceEvidence) -> Statement:
    ranks = [(p, p.mix) for p in on_device(job.summary) if p.mix is not None]
    if not ranks:
        return unread(job.summary, "no compute kernels: a CPU job has none")
    short, calls = sum(m.short_calls for _, m in ranks), sum(m.calls for _, m in ranks)
    part = Part([_share(p, m) for p, m in ranks])
    limit = format_duration(ranks[0][1].short_limit_ns)
    said = f"{format_percent(short / calls)} of {calls:,} compute kernels take at most {limit}"
    if short / calls < MOSTLY_SHORT.value or part.share < WORTH:
        return (
            f"{said} and take {part} of the time with their gaps, limits "
            f"{format_percent(MOSTLY_SHORT.value)} and {format_percent(WORTH)}"
        )
    return part.finding(
        f"kernels are too short: {said}, and {part} of the time goes to them and to the gaps between kernels",
        (*_per_step(ranks),),
        confidence="measured; the gain depends on how many kernels can be fused",
        advice=(
            Advice(
                text="find repeated sequences, and fuse them",
                command=trace_command(job, "--show sequences,kernels,launches"),
            ),
            AdviceFor(text="update in few kernels: a fused or foreach optimizer", applies_to=("trains",)),
            AdviceFor(
                text=option("compile", used_in(job.summary), plain="torch.compile(model) fuses them"),
                applies_to=("eager",),
            ),
            Advice(text="use a larger micro-batch, which makes every kernel longer at the same number of launches"),
        ),
    )


def _share(each: RankPass, mix: KernelMix) -> float:
    computing = each.budget.parts.compute_ns if each.budget is not None else mix.short_ns
    alone = max(0, min(mix.short_ns, computing - (mix.total_ns - mix.short_ns)))
    return min(1.0, alone / window_ns(each) + idle_share(each, "kernel_gap"))


def _per_step(ranks: list[tuple[RankPass, KernelMix]]) -> tuple[str, ...]:
    """Kernels a step, where steps are marked, and the mean length of the short ones."""
    mean_ns = sum(m.short_ns for _, m in ranks) / max(1, sum(m.short_calls for _, m in ranks))
    steps = sum(len(p.steps) for p, _ in ranks)
    lengths = f"the short ones take {format_duration(mean_ns)} each on average"
    if not steps:
        return (lengths,)
    return (f"{sum(m.calls for p, m in ranks if p.steps) / steps:,.0f} kernels a step and rank; {lengths}",)


RULE = Rule(
    symptom="most kernels are shorter than their launch",
    look_at_job=_look,
    claims=("step/idle/small kernels",),
    kind="host-bound",
    protocol=4,
    thresholds={"number": MOSTLY_SHORT, **SHARES},
)
