"""The device idles and no late launch is the cause: work is queued, its launch is not in the trace, or pages move.

What
----
Idle time of the device, over the window; mean over ranks, by kind: between kernels launched in time (gaps longer than
10 us; shorter ones too if most kernels are long, else `small-kernels` counts them), before work whose launch is not
in the trace, and before the driver moves pages of unified memory, which no call launches. A further finding reports
idle time of {problem%} or more for which no single cause reaches {warning%}.

Why
---
A device that does not start queued work waits for another stream, a host callback or another process on the same
device, or runs work that the profiler did not record. Pages of unified memory move when the device or the host touches
them, a few at a time, each after a fault. Faster launches change none of it.

Known problems
--------------
A trace does not record what a queued kernel waits for. Kernels that the profiler dropped (full buffers) look like idle
time.

References
----------
CUDA programming guide, streams and events (cudaStreamWaitEvent), unified memory (cudaMemPrefetchAsync); Kineto: events
launched before the capture have no runtime event.
"""

from __future__ import annotations

from pathlib import Path

from stepscope.core.units import format_duration, format_percent
from stepscope.diagnose.rule import GRAVE, WORTH, Finding, Rule, Statement, advise
from stepscope.diagnose.trace_facts import SHARES, idle_part, is_amd_device, mostly_short_kernels, on_device, unread
from stepscope.results.evidence import TraceEvidence

_OTHER_CAUSES = ("start_up", "sync", "data", "host_late", "launch_latency", "long_gap", "kernel_gap", "pages")
_NSYS = (".sqlite", ".sqlite3", ".db", ".nsys-rep")


def _queued_idle_of_job(job: TraceEvidence) -> Statement:
    """Look in one traced job for: the device idles although work is queued, until pages move, or the trace does not show
    the cause."""
    ranks = on_device(job.summary)
    if not ranks:
        return unread(job.summary, "no device work: a CPU job has no queue")
    queued = ("dependency",) if mostly_short_kernels(ranks) else ("dependency", "kernel_gap")
    between, unlinked, total = idle_part(ranks, *queued), idle_part(ranks, "unknown"), idle_part(ranks)
    findings: list[Finding] = []
    if between.share >= WORTH:
        gaps = [i for p in ranks for i in p.idle if i.cause in queued]
        longest = max(gaps, key=lambda i: i.idle_ns)
        call = longest.call
        processes = "nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv"
        findings.append(
            between.finding(
                f"the device idles {between} between queued kernels, which the host launched in time"
                + (f"; meanwhile the host waits in {call}" if call else ""),
                f"{sum(i.gap_count for i in gaps):,} gaps, "
                f"the longest {format_duration(max(i.largest_ns for i in gaps))}",
                call is not None
                and longest.largest_ns > longest.idle_ns / 2
                and "work that was launched before the capture began is not recorded, and may run then",
                confidence="measured; the trace does not record what a queued kernel waits for",
                advice=[
                    (
                        "check for waits between streams (wait_stream, events), host callbacks and side streams",
                        "--show idle,launches,path",
                    ),
                    (
                        "check whether another process computes on the same device",
                        "rocm-smi --showpids" if is_amd_device(job.summary) else processes,
                    ),
                ],
            )
        )
    if unlinked.share >= WORTH:
        by_nsys = all(Path(p.facts.file).suffix in _NSYS for p in job.summary.ranks)
        record = (
            "record the runtime calls and what the host does: nsys profile --trace=cuda,nvtx,osrt"
            if by_nsys
            else "list the gaps: where the capture begins, schedule(wait=1, warmup=1, active=3) helps"
            if any(p.host_lateness is not None for p in ranks)  # its operators were recorded
            else "record the CPU too (ProfilerActivity.CPU and CUDA), with schedule(wait=1, warmup=1, active=3)"
        )
        findings.append(
            unlinked.finding(
                f"the device idles {unlinked}; the cause is unknown because the trace lacks the launches after the gaps",
                "work launched before the capture began, runtime calls that were not recorded, or work that the profiler "
                "links to no call",
                confidence="measured; the cause is unknown",
                advice=[(record, "--show launches,idle")],
            )
        )
    pages = idle_part(ranks, "pages")
    if pages.share >= WORTH:
        gaps = [i for p in ranks for i in p.idle if i.cause == "pages"]
        findings.append(
            pages.finding(
                f"the device idles {pages} until pages of unified memory move",
                f"{sum(i.gap_count for i in gaps):,} gaps end with such a copy, "
                f"the longest {format_duration(max(i.largest_ns for i in gaps))}",
                "the driver moves pages when the device or the host touches them: no call launches these copies",
                confidence="measured; the trace does not record what touched the pages",
                advice=[
                    advise(
                        "prefetch the pages before they are used (cudaMemPrefetchAsync, also to the host before it reads), "
                        "or allocate on the device and copy",
                        "--show copies,idle",
                        key="other copies",
                    )
                ],
            )
        )
    causes = {cause: idle_part(ranks, cause) for cause in _OTHER_CAUSES} | {"queued": between, "not recorded": unlinked}
    if total.share >= GRAVE and all(part.share < WORTH for part in causes.values()):
        ranked = sorted(causes.items(), key=lambda item: -item[1].share)
        findings.append(
            total.finding(
                f"the device idles {total} for several causes, none of them {format_percent(WORTH)}",
                ", ".join(f"{cause.replace('_', ' ')} {part.percent}" for cause, part in ranked if part.share >= 0.005),
                advice=[("find the cause that is cheapest to remove", "--show idle,launches")],
            )
        )
    return findings or (
        f"the device idles {between} between queued kernels and {unlinked.percent} before work without a recorded launch, "
        f"limit {format_percent(WORTH)} each"
    )


RULE = Rule(
    symptom="the device idles although work is queued, until pages move, or the trace does not show the cause",
    look_at_job=_queued_idle_of_job,
    rests_on=("idle",),
    claims=("idle",),
    protocol=4,
    thresholds=SHARES,
)
