"""The device idles and the host is not the cause: work is queued, or its launch is not in the trace.

What
----
Idle time of the device, over the window; mean over ranks, by kind: between kernels launched in time (gaps longer than
10 us; shorter ones too if most kernels are long, else `small-kernels` counts them), and before work whose launch is not
in the trace. A further finding reports idle time of {problem%} or more for which no single cause reaches {warning%}.

Why
---
A device that does not start queued work waits for another stream, a host callback or another process on the same
device, or runs work that the profiler did not record. Faster launches change none of it.

Known problems
--------------
A trace does not record what a queued kernel waits for. Kernels that the profiler dropped (full buffers) look like idle
time.

References
----------
CUDA programming guide, streams and events (cudaStreamWaitEvent); Kineto: events launched before the capture have no
runtime event.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stepscope.core.units import format_duration, format_percent
from stepscope.diagnose.rule import Rule, Statement, inspect
from stepscope.diagnose.trace_facts import (
    GRAVE,
    SHARES,
    WORTH,
    RankShares,
    idle_share,
    is_amd_device,
    mostly_short_kernels,
    on_device,
    trace_command,
    unread,
    window_ns,
)
from stepscope.records.finding import Finding
from stepscope.records.trace_summary import RankPass
from stepscope.results.evidence import TraceEvidence

_PROCESSES = "nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv"
_OTHER_CAUSES = ("sync", "data", "host_late", "launch_latency", "long_gap")


def _judge_job(job: TraceEvidence) -> Statement:
    ranks = on_device(job.summary)
    if not ranks:
        return unread(job.summary, "no device work: a CPU job has no queue")
    queued = ("dependency",) if mostly_short_kernels(ranks) else ("dependency", "kernel_gap")
    between = RankShares([idle_share(p, *queued) for p in ranks])
    unlinked = RankShares([idle_share(p, "unknown") for p in ranks])
    findings = [*_between(job, ranks, between, queued), *_unlinked(job, unlinked)]
    if findings:
        return findings
    causes = {cause: RankShares([idle_share(p, cause) for p in ranks]) for cause in (*_OTHER_CAUSES, "kernel_gap")}
    causes |= {"queued": between, "not recorded": unlinked}
    total = RankShares([sum(i.idle_ns for i in p.idle) / window_ns(p) for p in ranks])
    if total.share >= GRAVE and all(part.share < WORTH for part in causes.values()):
        return _scattered(job, total, causes)
    return (
        f"the device idles {between} between queued kernels and {unlinked.percent} before work without a recorded launch, "
        f"limit {format_percent(WORTH)} each"
    )


def _between(job: TraceEvidence, ranks: list[RankPass], part: RankShares, causes: tuple[str, ...]) -> Iterator[Finding]:
    if part.share < WORTH:
        return
    gaps = [i for p in ranks for i in p.idle if i.cause in causes]
    yield part.finding(
        f"the device idles {part} between queued kernels, which the host launched in time",
        (f"{sum(i.gap_count for i in gaps):,} gaps, the longest {format_duration(max(i.largest_ns for i in gaps))}",),
        confidence="measured; the trace does not record what a queued kernel waits for",
        advice=(
            inspect(
                "check for waits between streams (wait_stream, events), host callbacks and side streams",
                trace_command(job, "--show idle,launches,path"),
            ),
            inspect(
                "check whether another process computes on the same device",
                "rocm-smi --showpids" if is_amd_device(job.summary) else _PROCESSES,
            ),
        ),
    )


def _unlinked(job: TraceEvidence, part: RankShares) -> Iterator[Finding]:
    if part.share < WORTH:
        return
    yield part.finding(
        f"the device idles {part}; the cause is unknown because the trace lacks the launches after the gaps",
        ("work launched before the capture began, or runtime calls that were not recorded",),
        confidence="measured; the cause is unknown",
        advice=(inspect(_RECORD[_by_nsys(job)], trace_command(job, "--show launches,idle")),),
    )


_RECORD = {
    False: "record the CPU too (ProfilerActivity.CPU and CUDA), with schedule(wait=1, warmup=1, active=3)",
    True: "record the runtime calls and what the host does: nsys profile --trace=cuda,nvtx,osrt",
}


def _by_nsys(job: TraceEvidence) -> bool:
    return all(Path(p.facts.file).suffix in (".sqlite", ".sqlite3", ".db", ".nsys-rep") for p in job.summary.ranks)


def _scattered(job: TraceEvidence, total: RankShares, causes: dict[str, RankShares]) -> Finding:
    ranked = sorted(causes.items(), key=lambda item: -item[1].share)
    text = ", ".join(f"{cause.replace('_', ' ')} {part.percent}" for cause, part in ranked if part.share >= 0.005)
    return total.finding(
        f"the device idles {total} for several causes, none of them {format_percent(WORTH)}",
        (text,),
        confidence="measured",
        advice=(inspect("find the cause that is cheapest to remove", trace_command(job, "--show idle,launches")),),
    )


RULE = Rule(
    symptom="the device idles although work is queued, or the trace does not show the cause",
    look_at_job=_judge_job,
    claims=("step/idle/queued",),
    protocol=4,
    thresholds=SHARES,
)
