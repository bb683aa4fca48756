"""The clocks of the ranks' traces differ.

What
----
Fits each rank's clock (offset, drift, residual) against the reference rank's on the ends of collectives, which all
ranks leave together. Fires on clocks that were corrected and on clocks that contradict the collectives and could not be
corrected.

Why
---
Waiting, skew and arrival order compare times of two ranks: with clocks 1 ms apart, a healthy rank looks like a
straggler. stepscope corrects the clocks; tools that overlay the recorded files do not.

Known problems
--------------
Ranks leave a collective up to 20 us apart, so smaller offsets are not detectable. Fewer than three common collectives
do not determine a clock. A file with another time base is not a clock error and is not reported here.

References
----------
metrics.md, Traces (clock alignment on end times). Quartz is off by at most some 100 ppm (crystals' data sheets); NTP
keeps hosts of one site within about 1 ms, PTP within 1 us (IEEE 1588-2019).
"""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.units import format_duration
from stepscope.core.words import counted
from stepscope.diagnose.rule import Limit, Rule, Statement, advise, inspect
from stepscope.diagnose.trace_facts import trace_command, unread
from stepscope.records.finding import Advice, Finding, Skipped
from stepscope.records.trace_collectives import ClockFit, Contradicted, Rebased
from stepscope.results.evidence import TraceEvidence

_APART = Limit(
    value=20_000,
    unit="ns",
    source="traces.alignment: ends differ by 1 to 7 us on a V100 node, by about 10 us across nodes (2026-11)",
)
_DRIFT = Limit(value=1e-4, unit="ns per ns", source="quartz crystals are specified to some 100 ppm at worst")


def _judge_job(job: TraceEvidence) -> Statement:
    if len(job.summary.ranks) < 2:
        return Skipped(reason="only one rank has a trace: no clock to compare with")
    collectives = job.summary.collectives
    if collectives is None or collectives.clocks.reference_rank is None:
        return unread(job.summary, "no collective appears on two ranks, so clocks cannot be compared")
    fits, reference = collectives.clocks.fits, collectives.clocks.reference_rank
    contradicting = [f for f in fits if isinstance(f, Contradicted)]
    moved = [f for f in fits if f.status == "corrected" and not isinstance(f, Rebased)]
    if contradicting:
        return (_contradiction(job, contradicting),)
    if moved:
        return (_skew(job, moved, reference),)
    unknown = [f for f in fits if f.status == "unknown"]
    compared = len(fits) - 1 - len(unknown)
    if not compared and unknown:
        return Skipped(reason=unknown[0].reason)
    more = f"; {counted(len(unknown), 'clock')} not compared ({unknown[0].reason})" if unknown else ""
    return f"{counted(compared, 'clock')} within {format_duration(_APART.value)} of rank {reference}'s{more}"


def _skew(job: TraceEvidence, moved: list[ClockFit], reference: int) -> Finding:
    most = max(moved, key=lambda f: abs(f.offset_ns))
    steep = max(moved, key=lambda f: abs(f.drift))
    drifts = abs(steep.drift) > _DRIFT.value
    ranks, apart = len(job.summary.ranks), format_duration(abs(most.offset_ns))
    direction = "ahead of" if most.offset_ns > 0 else "behind"
    evidence = [
        f"rank {most.rank} is {apart} {direction} rank {reference}, from {counted(most.collectives, 'collective')}"
        + (f"; {format_duration(most.residual_ns)} remain after the fit" if most.residual_ns is not None else "")
    ]
    if steep.drift:
        evidence.append(f"rank {steep.rank} drifts by {steep.drift * 1e6:+.1f} ppm")
    return Finding(
        severity="warning" if drifts else "info",
        title=f"the clocks of {len(moved)} of {ranks} ranks differ from rank {reference}'s by up to {apart}; corrected",
        evidence=tuple(evidence),
        confidence="measured on the ends of collectives",
        advice=(
            inspect(
                "stepscope uses corrected times; for other viewers, write one file on a common clock",
                trace_command(job, "--merge merged.json.gz"),
            ),
            *_keep_together(job, moved, reference),
        ),
        subject=f"rank {most.rank}",
    )


def _keep_together(job: TraceEvidence, moved: list[ClockFit], reference: int) -> tuple[Advice, ...]:
    """Advise what to do about the clocks: nothing on hosts where the ranks share one."""
    hosts = {p.facts.rank: p.facts.host for p in job.summary.ranks}
    others = {hosts.get(fit.rank) for fit in moved}
    if None in others or hosts.get(reference) is None:
        return (
            advise(
                "if these ranks run on several hosts, synchronise the hosts' clocks (chrony, PTP)", key="host clocks"
            ),
        )
    if others == {hosts[reference]}:
        return (
            inspect(
                "these ranks share a host and its clock: look for files of different runs, or profilers that count "
                "time from different starts"
            ),
        )
    return (
        advise(
            "synchronise the hosts' clocks: chrony against one server, PTP where the network has it", key="host clocks"
        ),
    )


def _contradiction(job: TraceEvidence, fits: Sequence[ClockFit]) -> Finding:
    ranks = ", ".join(str(f.rank) for f in fits[:8])
    return Finding(
        severity="warning",
        title=f"the clocks of {counted(len(fits), 'rank')} contradict the collectives and could not be corrected",
        evidence=(f"ranks {ranks}: {fits[0].reason}; waiting and skew with them may be wrong",),
        confidence="certain: either the clocks or the matching of collectives is wrong",
        advice=(
            inspect(
                "check that the traces belong to one run, and how collectives were matched",
                trace_command(job, "--show collectives"),
            ),
        ),
    )


RULE = Rule(
    symptom="the clocks of the ranks' traces differ",
    look_at_job=_judge_job,
    protocol=1,
    thresholds={"offset": _APART, "drift": _DRIFT},
)
