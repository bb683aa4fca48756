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

from stepscope.core.units import format_duration
from stepscope.core.words import counted
from stepscope.diagnose.rule import Limit, Rule, Statement, advise, finding, inspect, skipped
from stepscope.diagnose.trace_facts import unread
from stepscope.records.finding import Advice
from stepscope.records.trace_collectives import ClockFit, Contradicted, Rebased
from stepscope.results.evidence import TraceEvidence

_APART = Limit(
    20_000,
    unit="ns",
    source="traces.alignment: ends differ by 1 to 7 us on a V100 node, by about 10 us across nodes (2026-11)",
)
_DRIFT = Limit(1e-4, unit="ns per ns", source="quartz crystals are specified to some 100 ppm at worst")


def _clock_skew_of_job(job: TraceEvidence) -> Statement:
    """Look in one traced job for: the clocks of the ranks' traces differ."""
    if len(job.summary.ranks) < 2:
        return skipped("only one rank has a trace: no clock to compare with")
    collectives = job.summary.collectives
    if collectives is None or collectives.clocks.reference_rank is None:
        return unread(job.summary, "no collective appears on two ranks, so clocks cannot be compared")
    fits, reference = collectives.clocks.fits, collectives.clocks.reference_rank
    if contradicting := [f for f in fits if isinstance(f, Contradicted)]:
        ranks = ", ".join(str(f.rank) for f in contradicting[:8])
        return finding(
            f"the clocks of {counted(len(contradicting), 'rank')} contradict the collectives and could not be corrected",
            f"ranks {ranks}: {contradicting[0].reason}; waiting and skew with them may be wrong",
            confidence="certain: either the clocks or the matching of collectives is wrong",
            advice=[
                ("check that the traces belong to one run, and how collectives were matched", "--show collectives")
            ],
        )
    if moved := [f for f in fits if f.status == "corrected" and not isinstance(f, Rebased)]:
        return _skew_finding(job, moved, reference)
    unknown = [f for f in fits if f.status == "unknown"]
    compared = len(fits) - 1 - len(unknown)
    if not compared and unknown:
        return skipped(unknown[0].reason)
    more = f"; {counted(len(unknown), 'clock')} not compared ({unknown[0].reason})" if unknown else ""
    return f"{counted(compared, 'clock')} within {format_duration(_APART)} of rank {reference}'s{more}"


def _skew_finding(job: TraceEvidence, moved: list[ClockFit], reference: int) -> Statement:
    """Return the finding of clocks apart: by how much at most, and how fast they drift."""
    most = max(moved, key=lambda f: abs(f.offset_ns))
    steep = max(moved, key=lambda f: abs(f.drift))
    apart = format_duration(abs(most.offset_ns))
    direction = "ahead of" if most.offset_ns > 0 else "behind"
    return finding(
        f"the clocks of {len(moved)} of {len(job.summary.ranks)} ranks differ from rank {reference}'s by up to {apart}; "
        "corrected",
        f"rank {most.rank} is {apart} {direction} rank {reference}, from {counted(most.collectives, 'collective')}"
        + (f"; {format_duration(most.residual_ns)} remain after the fit" if most.residual_ns is not None else ""),
        steep.drift != 0 and f"rank {steep.rank} drifts by {steep.drift * 1e6:+.1f} ppm",
        severity="warning" if abs(steep.drift) > _DRIFT else "info",
        confidence="measured on the ends of collectives",
        advice=[
            (
                "stepscope uses corrected times; for other viewers, write one file on a common clock",
                "--merge merged.json.gz",
            ),
            _keep_together(job, moved, reference),
        ],
        of=f"rank {most.rank}",
    )


def _keep_together(job: TraceEvidence, moved: list[ClockFit], reference: int) -> Advice:
    """Advise what to do about the clocks: nothing on hosts where the ranks share one."""
    hosts = job.summary.hosts
    others = {hosts.get(fit.rank) for fit in moved}
    if others == {hosts.get(reference)} != {None}:
        return inspect(
            "these ranks share a host and its clock: look for files of different runs, or profilers that count "
            "time from different starts"
        )
    return advise(
        "if these ranks run on several hosts, synchronise the hosts' clocks (chrony, PTP)"
        if None in others or hosts.get(reference) is None
        else "synchronise the hosts' clocks: chrony against one server, PTP where the network has it",
        key="host clocks",
    )


RULE = Rule(
    symptom="the clocks of the ranks' traces differ",
    look_at_job=_clock_skew_of_job,
    protocol=1,
    thresholds={"offset": _APART, "drift": _DRIFT},
)
