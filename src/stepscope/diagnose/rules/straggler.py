"""The traces of a job show ranks that the others wait for.

What
----
For each collective that all ranks leave together, after clock alignment: which rank came last. A rank is named if, over
fewer than 20 steps, the collectives in which it came last carry at least 20% of all skew and it was last more often
than chance allows (binomial, Bonferroni over ranks, p < 0.05); over 20 steps or more, if the bootstrap lower bound of
the median by which its own time exceeds the others' is above 0. If no rank is named and waiting takes a tenth of the
time, the skew rotates.

Why
---
All ranks leave a collective together: the job runs at the speed of the last rank, and the waiting of the others looks
like communication. A faster network does not shorten it.

Known problems
--------------
With traces of some ranks only, missing ranks cannot be named, and waiting is a lower bound. A short capture names who
was late in it, not who is always late. A rank that is late because another rank's data arrived late (pipelines) is
named itself.

References
----------
METRICS, Stragglers; FORMATS, Trace JSON. `slow-rank` asks the same of the steps that `stepscope bench` times.
"""

from __future__ import annotations

from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.diagnose.outcome import Said
from stepscope.diagnose.rule import Rule, Threshold
from stepscope.diagnose.trace_facts import WORTH, WORTH_SOURCE, trace_command, unread
from stepscope.records.finding import Advice, Finding
from stepscope.records.trace_stragglers import Straggler, StragglerReport
from stepscope.results.evidence import TraceEvidence

_CAUSE_ADVICE = {
    "launch-bound": "its host launches late: check this host's CPU (other jobs, governor, pinning, Python work)",
    "more compute": "it computes longer: rebalance data or shards, or check for a slower (throttled) device",
    "data": "its data loader is slower: check storage, worker count and CPU of this host",
    "sync": "its host waits for the device and then launches late: check for .item(), logging or checkpoints only here",
    "memory copies": "it copies more: check for logging, checkpoints or pageable memory on this rank only",
}


def _look(job: TraceEvidence) -> Said:
    report = job.summary.stragglers
    if report is None:
        return unread(job.summary, "no collective was recorded")
    if not report.instances:
        return unread(job.summary, "no collective appears on two ranks: give the traces of all ranks")
    windows = [p.budget.parts.window_ns for p in job.summary.ranks if p.budget is not None]
    waiting = report.waiting_ns / sum(windows) if any(windows) else 0.0
    if report.stragglers:
        typical_ns = sum(windows) / len(windows) if windows else 0.0
        return tuple(_named(job, each, typical_ns) for each in report.stragglers)
    if waiting >= WORTH and report.pattern in ("rotating", "one-off"):
        return _nobody(job, report, waiting)
    return f"{report.text}; waiting takes {format_percent(waiting)} of the time"


def _named(job: TraceEvidence, each: Straggler, window_ns: float) -> Finding:
    host = next((p.facts.host for p in job.summary.ranks if p.facts.rank == each.rank), None)
    place = f"rank {each.rank}" + (f" on {host}" if host else "")
    advice = [
        Advice(
            text=_CAUSE_ADVICE.get(each.cause, "compare its kernels and host activity with another rank's"),
            command=trace_command(job, f"--show idle,kernels,operators --rank {each.rank}"),
        )
    ]
    if each.kind == "chronic" and host is not None and len({p.facts.host for p in job.summary.ranks}) > 1:
        advice.append(Advice(text=f"if it is late in every run without a known cause, exclude {host} from the job"))
    advice.append(Advice(text="a faster network does not help: this time is waiting, not transfer"))
    return Finding(
        severity="problem",
        title=f"{place} is a straggler: the others wait for it ({each.cause})",
        evidence=(
            f"{each.kind}: {each.evidence}",
            f"matching the second-slowest rank would save up to {format_duration(each.saved_ns)} of this capture's "
            f"{format_duration(window_ns)}",
        ),
        stake_fraction=min(1.0, each.saved_ns / window_ns) if window_ns else None,
        confidence=each.confidence,
        advice=tuple(advice),
        subject=f"rank {each.rank}",
        ranks=(each.rank,),
        at_ns=_latest(job, each.rank),
    )


def _latest(job: TraceEvidence, rank: int) -> tuple[int, int] | None:
    """The collective in which it cost the others most (waiting that nothing hid), on its own clock: from the first arrival
    to the end.
    """
    found = next((p.communication for p in job.summary.ranks if p.facts.rank == rank), None)
    instances = job.summary.collectives.instances if job.summary.collectives else ()
    late = [i for i in instances if i.last_ranks == (rank,) and i.transfer_ns is not None]
    if found is None or not late:
        return None
    worst = max(late, key=lambda i: (sum(min(r.waiting_ns or 0, r.exposed_ns) for r in i.ranks), i.skew_ns or 0))
    own = next(found.collectives[each.position] for each in worst.ranks if each.rank == rank)
    return own.start_ns - (worst.skew_ns or 0), own.end_ns


def _nobody(job: TraceEvidence, report: StragglerReport, waiting: float) -> Finding:
    once = report.pattern == "one-off"
    when = "mostly in one collective" if once else "each time for a different rank"
    return Finding(
        severity="warning",
        title=f"ranks wait for each other {format_percent(waiting)} of the time, {when}",
        evidence=(
            report.text,
            f"waiting of all ranks over {counted(report.instances, 'collective')}: {format_duration(report.waiting_ns)}",
        ),
        stake_fraction=min(1.0, waiting),
        confidence="measured; no rank was late more often than chance allows",
        advice=(
            Advice(
                text="check for occasional pauses: garbage collection, a checkpoint, a stalled read"
                if once
                else "check for uneven work between steps: sequence lengths, padding, jitter of loaders or of shared hosts",
                command=trace_command(job, "--show collectives,stragglers"),
            ),
        ),
    )


RULE = Rule(
    name="straggler",
    symptom="the other ranks wait for one rank, in the traces of a job",
    needs=("traces",),
    look_at_job=_look,
    protocol=2,
    thresholds={
        "share of skew": Threshold(value=0.20, unit="share of all skew", source="FORMATS, Trace JSON"),
        "p": Threshold(value=0.05, unit="probability, Bonferroni over ranks", source="FORMATS, Trace JSON"),
        "waiting": Threshold(value=WORTH, unit="share of the window", source=WORTH_SOURCE),
    },
)
