"""The device idles for what the host does once: modules are loaded, code is compiled and tuned, a first call is cold.

What
----
Idle time of the device inside calls that load code, compile, tune or make a context, and inside calls and operators of the
first step that last 10 ms (calls in a short window: a tenth of it, 0.5 ms), twenty times as long as others of their name and
five times as long as any later one, over the window. Without two marked steps the first are the first tenth of all calls,
the first tenth of ten or more calls of a name, and the first launch of each kernel. What comes back in most steps does not
count. The rule judges the rank with most of it; no other rule counts that time. Above half of the window it comes first.

Why
---
A first launch that loads a library takes as long as many steps, and once. Larger kernels or CUDA graphs do not shorten
it, and a capture that holds it says little of the usual step.

Known problems
--------------
A library that makes its handle without a call of the runtime (cuBLAS, cuDNN inside an operator) is seen only where the same
operator is called again later. With one marked step nothing shows whether it comes back.

References
----------
CUDA programming guide, lazy loading (CUDA_MODULE_LOADING); torch.profiler.schedule: wait and warmup.
"""

from __future__ import annotations

from statistics import median

from stepscope.core.units import format_duration
from stepscope.core.words import counted, in_words
from stepscope.diagnose.bounds import OF_WINDOW
from stepscope.diagnose.rule import WORTH, Rule, Statement, finding
from stepscope.diagnose.trace_facts import SHARES, cut, idle_share, on_device, unread
from stepscope.records.trace_summary import RankPass
from stepscope.results.evidence import TraceEvidence

MOST = 0.5
"""Of the window: a capture that is start-up for longer shows little of the usual step, and shares of it mean little."""


def _start_up_of_job(job: TraceEvidence) -> Statement:
    """Look in one traced job for: the device idles for what the host does once: loading, compiling, a cold first call."""
    ranks = on_device(job.summary)
    if not ranks:
        return unread(job.summary, "no device work: a CPU job waits for no launches")
    worst = max(ranks, key=lambda p: idle_share(p, "start_up"))
    share = idle_share(worst, "start_up")
    if share < WORTH:
        return f"the device idles {OF_WINDOW.of(share)} for what comes once, limit {OF_WINDOW}"
    cause = next(i for i in worst.idle if i.cause == "start_up")
    rank = f" on rank {worst.facts.rank}" if len(job.summary.ranks) > 1 else ""
    call = f" in {cut(cause.call, 60)}" if cause.call else ""
    return finding(
        f"one-time start-up: the device idles {format_duration(cause.idle_ns)} ({OF_WINDOW.of(share)}){call}{rank}",
        f"{counted(cause.gap_count, 'gap')}, the longest {format_duration(cause.largest_ns)}; it does not come back",
        _start_up_steps(worst),
        share=share,
        priority="doubt" if share > MOST else "performance",
        confidence="measured; nothing shows whether the job starts again",
        ranks=(worst.facts.rank,),
        advice=[("judge the job by later steps: schedule(wait=1, warmup=1, active=3)", "--show idle,steps")],
    )


def _start_up_steps(rank: RankPass) -> str | None:
    """Say which steps hold it, and how long the others take."""
    cold = [s for s in rank.steps if s.start_up_ns]
    others = [s.parts.window_ns for s in rank.steps if not s.start_up_ns and s.parts.window_ns]
    if not cold:
        return None
    where = f"in step{'s' * (len(cold) > 1)} {in_words([s.step for s in cold[:3]])}"
    return where + (f"; the other steps take {format_duration(median(others))}" if others else "")


RULE = Rule(
    symptom="the device idles for what the host does once: loading, compiling, a cold first call",
    look_at_job=_start_up_of_job,
    rests_on=("idle",),
    claims=("idle",),
    protocol=2,
    thresholds={"warning": SHARES["warning"]},
)
