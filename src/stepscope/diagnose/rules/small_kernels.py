"""Most kernels are so short that launching them takes as long as running them.

What
----
Share of compute kernels of at most 10 us, by number, and the share of the window that they and the gaps between queued
kernels take. Fires if they are at least {number%} of all kernels and take {warning}, of
ranks with at least {kernels}.

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
from stepscope.diagnose.frameworks import in_words_of
from stepscope.diagnose.rule import Limit, Statement, advise
from stepscope.diagnose.trace_facts import (
    MOSTLY_SHORT,
    RankShares,
    idle_share,
    larger_batch,
    share_rule,
    window_ns,
    with_kernels,
)
from stepscope.records.trace_summary import RankPass, TraceSummary

FEWEST = Limit(
    10,
    unit="compute kernels",
    source="stepscope's choice, 2026-11: a step of any model has some hundred; examples of one or two kernels are none",
)


def _short_kernel_share(ranks: Sequence[RankPass]) -> float:
    """Share of all compute kernels, by number, that are no longer than their launch."""
    mixes = RankShares((), ranks=ranks).mixes
    return sum(m.short_calls for m in mixes) / sum(m.calls for m in mixes)


def _many_kernels_text(part: RankShares) -> str:
    calls, limit = sum(m.calls for m in part.mixes), format_duration(part.mixes[0].short_limit_ns)
    return f"{format_percent(part.also)} of {calls:,} compute kernels take at most {limit}"


def _small_kernels_statement(part: RankShares) -> Statement:
    """Return the finding, or why there is none: most kernels are shorter than their launch."""
    mean_ns = sum(m.short_ns for m in part.mixes) / max(1, sum(m.short_calls for m in part.mixes))
    steps = sum(len(p.steps) for p in part.ranks)
    calls = sum(p.mix.calls for p in part.ranks if p.mix is not None and p.steps)
    a_step = f"{calls / steps:,.0f} kernels a step and rank; " if steps else ""
    return part.finding(
        f"kernels are too short: {_many_kernels_text(part)}, and {part} goes to them and to the gaps between kernels",
        f"{a_step}the short ones take {format_duration(mean_ns)} each on average",
        confidence="measured; the gain depends on how many kernels can be fused",
        advice=[
            advise("find repeated sequences, and fuse them", "--show sequences,kernels,launches", key="larger kernels"),
            advise("update in few kernels: a fused or foreach optimizer", key="fused optimizer"),
            in_words_of("compile", part.frameworks, plain="torch.compile(model) fuses them"),
            *larger_batch(part.frameworks, "use {}, which makes every kernel longer at the same number of launches"),
        ],
    )


def _ranks_with_enough(summary: TraceSummary) -> list[RankPass]:
    return [p for p in with_kernels(summary) if p.mix is not None and p.mix.calls >= FEWEST]


def _small_kernel_share(rank: RankPass) -> float:
    mix = rank.mix
    assert mix is not None
    computing = rank.budget.parts.compute_ns if rank.budget is not None else mix.short_ns
    alone = max(0, min(mix.short_ns, computing - (mix.total_ns - mix.short_ns)))
    return min(1.0, alone / window_ns(rank) + idle_share(rank, "kernel_gap"))


RULE = share_rule(
    symptom="most kernels are shorter than their launch",
    ranks=_ranks_with_enough,
    without="too few compute kernels: a CPU job has none",
    measure=lambda ranks: list(map(_small_kernel_share, ranks)),
    also=(_short_kernel_share, MOSTLY_SHORT),
    figures=lambda part: f"{_many_kernels_text(part)} and take {part} with their gaps",
    report=_small_kernels_statement,
    claims=("idle",),
    kind="host-bound",
    protocol=4,
    thresholds={"number": MOSTLY_SHORT, "kernels": FEWEST},
)
