"""The device computes nearly all the time: good news.

What
----
Computation over the window, overlapping streams counted once; median over ranks. From 80% on, communication, waiting,
idle time and copies together take less than a fifth.

Why
---
Further gains are in the kernels themselves (precision, fusion, recomputation) or in more ranks.

Known problems
--------------
A busy device is not an efficient one: MFU shows how efficient the computation is. On CPU jobs operators count as
computation, including their internal waits.

References
----------
METRICS, A step (one-line verdict), Utilisation; document 004, Reading the analysis ("Good! System is well-utilized").
"""

from __future__ import annotations

from statistics import median

from stepscope.core.units import format_percent
from stepscope.diagnose.outcome import Said
from stepscope.diagnose.rule import Rule, Threshold
from stepscope.diagnose.trace_facts import on_device, read_in_full, trace_command, unread
from stepscope.records.finding import Advice, Finding
from stepscope.records.trace_summary import RankPass
from stepscope.results.evidence import TraceEvidence

_MOSTLY = Threshold(
    value=0.8,
    unit="share of the window",
    source="the rest could give a speed-up of at most 1.25; METRICS rates 0.8 good",
)


def _look(job: TraceEvidence) -> Said:
    ranks = read_in_full(job.summary)
    if not ranks:
        return unread(job.summary, "no rank has measurable events")
    share, used = median(_share(p) for p in ranks), _used(ranks)
    if share < _MOSTLY.value:
        return f"computation takes {format_percent(share)} of the time, limit {format_percent(_MOSTLY.value)}"
    return Finding(
        severity="info",
        title=f"compute-bound: computation takes {format_percent(share)} of the time"
        + (" (median rank)" if len(ranks) > 1 else "")
        + "",
        evidence=(_rest(ranks), *used),
        confidence="measured" if on_device(job.summary) else "measured from operators on CPUs",
        advice=(
            Advice(
                text="list the kernels with most time",
                command=trace_command(job, "--show utilisation,kernels"),
            )
            if used
            else Advice(
                text="MFU shows how efficient the computation is: give the model's FLOP per step and rank",
                command=trace_command(job, "--show utilisation,kernels --flop FLOP"),
            ),
        ),
    )


def _share(each: RankPass) -> float:
    parts = each.budget.parts if each.budget else None
    return parts.compute_ns / parts.window_ns if parts and parts.window_ns else 0.0


def _rest(ranks: list[RankPass]) -> str:
    parts = [p.budget.parts for p in ranks if p.budget is not None and p.budget.parts.window_ns]
    shares = {
        "exposed communication": median(p.exposed_comm_ns / p.window_ns for p in parts),
        "exposed copies": median(p.exposed_memory_ns / p.window_ns for p in parts),
        "idle": median(p.idle_ns / p.window_ns for p in parts),
    }
    return ", ".join(f"{name} {format_percent(share)}" for name, share in shares.items())


def _used(ranks: list[RankPass]) -> tuple[str, ...]:
    used = [p.utilisation for p in ranks if p.utilisation is not None]
    figures = [(u.mfu or u.hfu, "MFU" if u.mfu else "HFU", u.dtype) for u in used if u.mfu or u.hfu]
    if not figures:
        return ()
    value, name, dtype = max(figures, key=lambda f: f[0] or 0.0)
    return (f"{name} {format_percent(value or 0.0)} of the {dtype} peak",)


RULE = Rule(
    name="compute-bound",
    symptom="the device computes nearly all the time (good news)",
    needs=("traces",),
    look_at_job=_look,
    good_news=True,
    protocol=2,
    thresholds={"computation": _MOSTLY},
)
