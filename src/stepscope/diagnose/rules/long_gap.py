"""The device idles for one long gap: a checkpoint, an evaluation, or a stall.

What
----
At most three gaps, each at least {warning} and five times as long as any other gap, in at most half of the
marked steps. No other rule counts their idle time. The rule judges the rank that idles longest: the others wait for it.

Why
---
One gap of 10 s in a capture of 13 s is not part of the usual step, and fusing kernels does not shorten it. Checkpoints
can be written asynchronously and evaluations made rarer; any other gap is a stall of the host.

Known problems
--------------
The capture does not show how often such a gap recurs. Host activity is known only as far as operators or annotations
cover it. Without marked steps, gaps below 1 s are not judged.

References
----------
torch.distributed.checkpoint.async_save (PyTorch documentation, Distributed Checkpoint).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from stepscope.core.units import format_duration
from stepscope.core.words import counted
from stepscope.diagnose.bounds import OF_WINDOW
from stepscope.diagnose.rule import WORTH, Rule, Statement, advise, finding, inspect
from stepscope.diagnose.trace_facts import SHARES, cut, idle_share, read_in_full, unread
from stepscope.records.finding import Advice
from stepscope.records.trace_budget import LongGap
from stepscope.records.trace_summary import RankPass
from stepscope.results.evidence import TraceEvidence

SHOWN = 4
_SAVES = re.compile(r"save|checkpoint|ckpt", re.IGNORECASE)
_EVALUATES = re.compile(r"eval|valid|test_step|generate", re.IGNORECASE)
_LOADS = re.compile(r"DataLoader|dataloader|load_batch")

_HOST = {
    "data": "the host was loading data",
    "sync": "the host waited for the device before the gap",
    "dependency": "work was queued and did not start",
    "unknown": "the trace lacks the launch of the work after the gap",
    "pages": "pages of unified memory move after the gap",
}


def _long_gap_of_job(job: TraceEvidence) -> Statement:
    """Look in one traced job for: the device idles for one long gap: a checkpoint, an evaluation, a stall."""
    ranks = read_in_full(job.summary)
    if not ranks:
        return unread(job.summary, "no rank has measurable events")
    worst = max(ranks, key=lambda p: idle_share(p, "long_gap"))
    share = idle_share(worst, "long_gap")
    if share < WORTH:
        return f"no single gap takes {OF_WINDOW}"
    gaps = sorted((gap for p in ranks for gap in p.long_gaps), key=lambda gap: -gap.gap_ns)
    own_gaps = worst.long_gaps
    longest = max(own_gaps, key=lambda gap: gap.gap_ns)
    times = "once" if len(own_gaps) == 1 else f"{len(own_gaps)} times"
    rank = f"rank {worst.facts.rank}" if len(job.summary.ranks) > 1 else "the device"
    start = worst.budget.start_ns + longest.after_ns if worst.budget is not None else None
    return finding(
        f"{rank} idles {times} for {format_duration(sum(gap.gap_ns for gap in own_gaps))} ({OF_WINDOW.of(share)}), "
        f"{_gap_place(own_gaps[0], ranks)}" + (" first" if len(own_gaps) > 1 else ""),
        [
            f"rank {g.rank}: {format_duration(g.gap_ns)} idle {_gap_place(g, ranks)}; {_host_text(g)}"
            for g in gaps[:SHOWN]
        ],
        len(gaps) > SHOWN and f"and {counted(len(gaps) - SHOWN, 'gap')} more",
        stake=share,
        ranks=(worst.facts.rank,),
        at_ns=None if start is None else (start, start + longest.gap_ns),
        confidence="measured; the trace does not show how often such a gap recurs",
        advice=[
            inspect(
                "check the host in the gap: a checkpoint, an evaluation, logging, a stalled file system",
                "--show idle,annotations",
                only_for=("trains",),
            ),
            inspect(
                "check whether a request was there to be served in the gap: an idle server has none",
                "--show idle,annotations",
                only_for=("infers",),
            ),
            _gap_advice(longest),
        ],
    )


def _gap_advice(gap: LongGap) -> Advice | None:
    """Advise what helps, where the trace says what the host did."""
    name = gap.host_in or ""
    if gap.cause == "data" or _LOADS.search(name):
        return inspect("the loader stalls: check storage, the start of its workers, and persistent_workers=True")
    if _SAVES.search(name):
        return advise(
            "write checkpoints asynchronously: torch.distributed.checkpoint.async_save", key="async checkpoint"
        )
    if _EVALUATES.search(name):
        return advise("evaluate less often, or in a job of its own", key="rare evaluation")
    if name or gap.cause in ("dependency", "unknown", "pages"):
        return None
    return advise(
        "if it is a checkpoint, write it asynchronously (torch.distributed.checkpoint.async_save); if it is "
        "an evaluation, make it rarer",
        key="async checkpoint",
        only_for=("trains",),
    )


def _gap_place(gap: LongGap, ranks: Sequence[RankPass]) -> str:
    """Say where in the window the gap is."""
    step = "" if gap.step is None else f", in step {gap.step}"
    budget = next(p.budget for p in ranks if p.facts.rank == gap.rank)
    if budget is None or gap.after_ns < budget.before_work_ns:
        return f"before the first work{step}"
    if budget.after_work_ns and gap.after_ns + gap.gap_ns >= budget.parts.window_ns:
        return f"behind the last work{step}"
    return f"{format_duration(gap.after_ns - budget.before_work_ns)} after the first work{step}"


def _host_text(gap: LongGap) -> str:
    if gap.host_in is not None:
        return f"the host was in {cut(gap.host_in)}"
    return _HOST.get(gap.cause, "no operator on the host covers the gap")


RULE = Rule(
    symptom="the device idles for one long gap: a checkpoint, an evaluation, a stall",
    look_at_job=_long_gap_of_job,
    claims=("idle",),
    protocol=2,
    thresholds=SHARES,
)
