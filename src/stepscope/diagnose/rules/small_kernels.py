"""Most kernels are so short that launching them takes as long as running them.

What
----
Share of compute kernels of at most 10 us, by number, and the share of the window that they and the gaps between queued
kernels take. Fires if they are at least {number%} of all kernels and take {warning}.

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
operations; a published checklist, "Batch size sufficient?".
"""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.units import format_duration, format_percent
from stepscope.diagnose.frameworks import option
from stepscope.diagnose.rule import advise
from stepscope.diagnose.trace_facts import (
    MOSTLY_SHORT,
    RankShares,
    idle_share,
    mixes_of,
    share_rule,
    window_ns,
    with_kernels,
)
from stepscope.records.finding import Finding
from stepscope.records.trace_summary import RankPass


def _short(ranks: Sequence[RankPass]) -> float:
    """Share of all compute kernels, by number, that are no longer than their launch."""
    mixes = mixes_of(ranks)
    return sum(m.short_calls for m in mixes) / sum(m.calls for m in mixes)


def _many(part: RankShares) -> str:
    mixes = mixes_of(part.ranks)
    calls, limit = sum(m.calls for m in mixes), format_duration(mixes[0].short_limit_ns)
    return f"{format_percent(part.also)} of {calls:,} compute kernels take at most {limit}"


def _report(part: RankShares) -> Finding:
    return part.finding(
        f"kernels are too short: {_many(part)}, and {part} goes to them and to the gaps between kernels",
        (*_per_step(part.ranks),),
        confidence="measured; the gain depends on how many kernels can be fused",
        advice=(
            advise(
                "find repeated sequences, and fuse them",
                part.command("--show sequences,kernels,launches"),
                key="larger kernels",
            ),
            advise("update in few kernels: a fused or foreach optimizer", only_for=("trains",), key="fused optimizer"),
            advise(
                option("compile", part.frameworks, plain="torch.compile(model) fuses them"),
                only_for=("eager",),
                key="compile",
            ),
            advise(
                "use a larger micro-batch, which makes every kernel longer at the same number of launches",
                key="larger kernels",
            ),
        ),
    )


def _share(rank: RankPass) -> float:
    mix = rank.mix
    assert mix is not None
    computing = rank.budget.parts.compute_ns if rank.budget is not None else mix.short_ns
    alone = max(0, min(mix.short_ns, computing - (mix.total_ns - mix.short_ns)))
    return min(1.0, alone / window_ns(rank) + idle_share(rank, "kernel_gap"))


def _per_step(ranks: Sequence[RankPass]) -> tuple[str, ...]:
    """Kernels a step, where steps are marked, and the mean length of the short ones."""
    mixes = mixes_of(ranks)
    mean_ns = sum(m.short_ns for m in mixes) / max(1, sum(m.short_calls for m in mixes))
    steps = sum(len(p.steps) for p in ranks)
    lengths = f"the short ones take {format_duration(mean_ns)} each on average"
    if not steps:
        return (lengths,)
    calls = sum(p.mix.calls for p in ranks if p.mix is not None and p.steps)
    return (f"{calls / steps:,.0f} kernels a step and rank; {lengths}",)


RULE = share_rule(
    symptom="most kernels are shorter than their launch",
    ranks=with_kernels,
    without="no compute kernels: a CPU job has none",
    measure=lambda ranks: list(map(_share, ranks)),
    also=(_short, MOSTLY_SHORT),
    figures=lambda part: f"{_many(part)} and take {part} with their gaps",
    report=_report,
    claims=("step/idle/small kernels",),
    kind="host-bound",
    protocol=4,
    thresholds={"number": MOSTLY_SHORT},
)
