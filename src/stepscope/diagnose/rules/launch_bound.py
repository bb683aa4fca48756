"""The device waits for the host to launch its next kernel.

What
----
Idle time of the device that ends with a kernel launched too late, plus the latency of such launches, over the window;
mean over ranks. Other rules count the rest: waits for the device (`host-sync`), data (`data-loading`), single long gaps
(`long-gap`), gaps between queued kernels (`small-kernels`, `queued-idle`), and Python between operators if it is most
of the host's delay (`python-overhead`).

Why
---
Launching one operator of eager PyTorch costs the host 5 to 10 us and more. If kernels are shorter, the device runs out
of work, and a faster GPU changes nothing.

Known problems
--------------
The profiler slows launches, most of all with stacks (`with_stack=True`), so a job near the limit may be launch-bound
only while it is traced. Compare the step time with and without the profiler.

References
----------
PyTorch performance tuning guide; A. Gray, Getting Started with CUDA Graphs, NVIDIA developer blog, 2019 (a kernel of
2.9 us takes 9.6 us with a launch and a wait each, 3.8 us without the wait, 3.4 us in a graph).
"""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.units import format_duration
from stepscope.diagnose.bounds import OF_WINDOW
from stepscope.diagnose.frameworks import in_words_of
from stepscope.diagnose.rule import Statement, advise
from stepscope.diagnose.trace_facts import (
    RankShares,
    idle_part,
    idle_share,
    larger_batch,
    on_device,
    python_shares,
    share_rule,
)
from stepscope.records.trace_summary import RankPass
from stepscope.results.evidence import Evidence
from stepscope.traces.blocking_calls import replays

LONG_GAP_NS = 1_000_000
"""Mean lateness of launches that single operators do not explain: one takes the host some 10 us."""

_CAUSES = {"host_late": "idle before the launch", "launch_latency": "idle between launch and start"}


def _late_launch_shares(ranks: Sequence[RankPass]) -> list[float]:
    """Return what is idle before late launches, without the time that python-overhead has."""
    return [idle_share(p, *_CAUSES) - elsewhere for p, elsewhere in zip(ranks, _python_shares(ranks), strict=True)]


def _python_shares(ranks: Sequence[RankPass]) -> list[float]:
    return python_shares(ranks) or [0.0] * len(ranks)


def _launch_figures_text(part: RankShares) -> str:
    rest = ", without Python between operators" if any(_python_shares(part.ranks)) else ""
    return f"the device idles {part} because launches are late{rest}"


def _launch_bound_statement(part: RankShares) -> Statement:
    """Return the finding, or why there is none: the device idles because the host launches work too late."""
    split = ", ".join(f"{text} {idle_part(part.ranks, c).percent}" for c, text in _CAUSES.items())
    if any(python := _python_shares(part.ranks)):
        split += f"; of it {RankShares(python).percent} is Python between operators (python-overhead)"
    look = "--show launches,idle,sequences"
    late = [i for p in part.ranks for i in p.idle if i.cause == "host_late"]
    graphs = sum(i.idle_ns for i in late if i.call is not None and replays(i.call))
    used = part.frameworks
    gap_ns = sum(i.idle_ns for i in late) / max(1, sum(i.gap_count for i in late))
    call = max(late, key=lambda i: i.idle_ns).call if late else None
    return part.finding(
        f"launch-bound: the device idles {part} because the host launches work too late",
        split,
        confidence="measured from launches and their kernels; the profiler itself slows launches",
        advice=[
            advise(
                "CUDA graphs run already: find what the host does between them, and put it into the graphs",
                look,
                key="more in graphs",
            ),
            *larger_batch(used, "use {}, which makes every graph longer"),
        ]
        if graphs > sum(i.idle_ns for i in late) / 2
        else [
            (
                f"see what the host does{f' in {call}' if call else ''}: it launches {format_duration(gap_ns)} too late on "
                "average, which many small kernels do not explain",
                look,
            )
        ]
        if gap_ns >= LONG_GAP_NS
        else [
            *larger_batch(used, "use fewer, larger kernels: {}", look),
            advise("update in few kernels: a fused optimizer (fused=True)", key="fused optimizer"),
            *in_words_of("compile", used, plain="fuse them: torch.compile(model)"),
            *in_words_of(
                "cuda graphs",
                used,
                plain='if shapes are constant, replay CUDA graphs: compile with mode="reduce-overhead"',
            ),
        ],
    )


def _judge_dry(evidence: Evidence) -> Statement:
    """Judge the largest world of a dry run."""
    from stepscope.diagnose.dry_findings import host_statement

    job = next((job for job in evidence.dry if job.worlds), None)
    return "no step" if job is None else host_statement(job, limit=OF_WINDOW)


RULE = share_rule(
    symptom="the device idles because the host launches work too late",
    ranks=on_device,
    without="no device work: a CPU job launches no kernels",
    measure=_late_launch_shares,
    figures=_launch_figures_text,
    report=_launch_bound_statement,
    look=_judge_dry,
    any_of=("traces", "dry"),
    claims=("idle",),
    kind="host-bound",
    protocol=2,
    rests_on=("idle",),
)
