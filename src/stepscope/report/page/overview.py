"""What stands first: the findings as the page shows them, and the figures that everybody asks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from stepscope.core.dataclass import dataclass
from stepscope.core.units import format_bandwidth, format_bytes_binary, format_duration, format_percent, format_size
from stepscope.core.words import counted, plural
from stepscope.diagnose.engine import believable
from stepscope.diagnose.headlines import all_clear
from stepscope.records.finding import Diagnosis, Finding
from stepscope.records.nouns import EXPOSED_COMM
from stepscope.report.page.timeline import TimelinePlace, place
from stepscope.report.table import rate
from stepscope.results.comm_facts import best_size
from stepscope.results.comm_labels import op_label
from stepscope.results.epochs import best_accuracy, exposed_fraction
from stepscope.results.evidence import Evidence
from stepscope.results.labels import failure_label
from stepscope.results.scaling import NOT_EQUIVALENT
from stepscope.traces.waits import waits_of

LEAST_EXPOSED = 0.05
"""Share of a step below which nobody acts on exposed communication."""

_SEVERITY_WORDS = {"problem": "problem", "warning": "warning", "info": "good to know"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownFinding:
    """A finding with its stake in words and as the width of a bar (None: no matter of time).

    explained: how the stake and a share of time in the title differ. place: where the timeline shows it.
    """

    finding: Finding
    severity: str
    stake: str | None
    stake_width: str | None
    explained: str | None = None
    place: TimelinePlace | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFigure:
    """One key figure: what, how much, of what."""

    label: str
    value: str
    note: str = ""


def shown_findings(diagnosis: Diagnosis, timeline: Mapping[str, Any] | None = None) -> tuple[ShownFinding, ...]:
    """The findings in their order. timeline: the page's, whose places they link to."""
    return tuple(_shown(finding, timeline or {"jobs": ()}) for finding in diagnosis.findings)


def _shown(finding: Finding, timeline: Mapping[str, Any]) -> ShownFinding:
    stake = finding.stake_fraction
    return ShownFinding(
        finding=finding,
        severity=_SEVERITY_WORDS[finding.severity],
        stake=None if stake is None else f"a fix recovers up to {format_percent(stake)} of the step",
        stake_width=None if stake is None else f"{min(max(stake, 0.0), 1.0) * 100:.1f}%",
        explained=_explained(finding),
        place=place(timeline, finding),
    )


def _explained(finding: Finding) -> str | None:
    """Why what was measured is not the stake; None where there are no two shares to tell apart."""
    if finding.share is None or finding.stake_fraction is None:
        return None
    measured, stake = format_percent(finding.share), format_percent(finding.stake_fraction)
    if measured == stake:
        return None
    return (
        f"This takes {measured} of the step. A fix of this alone recovers at most {stake}: the rest stays, or has another"
        " cause."
    )


def answer(diagnosis: Diagnosis) -> Finding | None:
    """The finding that answers what is wrong: the first; None where there is nothing but good news."""
    return next((finding for finding in diagnosis.findings if finding.severity != "info"), None)


def headline(evidence: Evidence, diagnosis: Diagnosis) -> str:
    """One sentence: what was looked at and what was found."""
    found = Counter[str](finding.severity for finding in diagnosis.findings)
    worries = [
        counted(found[severity], word)
        for severity, word in (("problem", "problem"), ("warning", "warning"))
        if found[severity]
    ]
    looked = [
        counted(number, word)
        for number, word in (
            (len(evidence.runs), "run"),
            (len(evidence.traced_jobs), "traced job"),
            (0 if evidence.traces else len(evidence.profiled), "profiled job"),
            (len(evidence.traces) if len(evidence.traces) > len(evidence.traced_jobs) else 0, "capture"),
            (len(evidence.comm), "collective measurement"),
        )
        if number
    ]
    quiet = len(diagnosis.quiet)
    subject = ", ".join(looked) or "nothing measured"
    if clear := all_clear(diagnosis, complete=evidence.complete):
        return f"{subject}: {clear}."
    return (
        f"{subject}: {' and '.join(worries)}"
        f" ({quiet} {plural(quiet, 'rule')} found nothing, {len(diagnosis.skipped)} lacked data)."
    )


def key_figures(evidence: Evidence, diagnosis: Diagnosis) -> tuple[KeyFigure, ...]:
    """At most eight, those that the evidence has; none from a run that a finding declares wrong."""
    trusted = believable(evidence, diagnosis.findings)
    figures = [
        _failed(evidence),
        _throughput(trusted),
        _scaling(trusted),
        _exposed(trusted),
        None if evidence.profiled else _traces(evidence),  # a profiled job's steps say it of all of them
        _busbw(evidence),
        _memory(trusted),
        _accuracy(trusted),
    ]
    return tuple(figure for figure in figures if figure is not None)


def _failed(evidence: Evidence) -> KeyFigure | None:
    failed = [run for run in evidence.runs if run.status != "ok"]
    if not failed:
        return None
    first = failed[0]
    return KeyFigure(
        label="runs without a result",
        value=f"{len(failed)} of {len(evidence.runs)}",
        note=f"{first.group}, {first.label}: {failure_label(first)}" + (", ..." if len(failed) > 1 else ""),
    )


def _throughput(evidence: Evidence) -> KeyFigure | None:
    rated = [(run.samples_per_s.value, run) for run in evidence.runs if run.samples_per_s is not None]
    if len(rated) < 2 or len({(run.unit, run.dataset, run.model) for _, run in rated}) > 1:
        return None  # nothing to choose between, or figures of different work
    value, run = max(rated, key=lambda pair: pair[0])
    return KeyFigure(
        label="fastest setting", value=f"{rate.write(value)} {run.unit}/s", note=f"{run.group}, {run.label}"
    )


def _scaling(evidence: Evidence) -> KeyFigure | None:
    rows = [row for row in evidence.scaling if row.rating not in (None, NOT_EQUIVALENT)]
    if not rows:
        return None
    row = max(rows, key=lambda r: (r.world_size, r.speedup))
    if row.speedup < 1:
        return None  # no speed-up: negative-scaling says so
    return KeyFigure(
        label=f"best speed-up on {counted(row.world_size, 'rank')}",
        value=f"{row.speedup:.2f}x",
        note=f"{format_percent(row.efficiency)} efficiency, {row.group}",
    )


def _exposed(evidence: Evidence) -> KeyFigure | None:
    shares = [(share, run) for run in evidence.runs if (share := exposed_fraction(run)) is not None]
    if not shares:
        return None
    share, run = max(shares, key=lambda pair: pair[0])
    if share < LEAST_EXPOSED:
        return None
    return KeyFigure(
        label=f"most {EXPOSED_COMM}", value=format_percent(share), note=f"of the step, {run.group}, {run.label}"
    )


def _traces(evidence: Evidence) -> KeyFigure | None:
    budgets = [(p.budget, t) for t in evidence.traces for p in t.summary.ranks if p.budget is not None]
    if not budgets:
        return None
    worst, job = max(budgets, key=lambda pair: pair[0].parts.exposed_comm_fraction)
    share = worst.parts.exposed_comm_fraction
    if share < LEAST_EXPOSED:
        return None
    waits = waits_of(job.summary.collectives).get(worst.rank)
    waiting = (
        "" if waits is None else f"; {format_percent(waits.exposed_ns / worst.parts.exposed_comm_ns)} of it waiting"
    )
    return KeyFigure(
        label=f"most {EXPOSED_COMM} in a trace",
        value=format_percent(share),
        note=f"{job.name}, rank {worst.rank}, of {format_duration(worst.parts.window_ns)}{waiting}",
    )


def _busbw(evidence: Evidence) -> KeyFigure | None:
    best = best_size(evidence.comm)
    if best is None:
        return None
    return KeyFigure(
        label="best busbw",
        value=format_bandwidth(best.busbw_bytes_per_s or 0.0),
        note=f"{op_label(best)}, {format_size(best.size_bytes or 0)}, {counted(best.world_size, 'rank')}",
    )


def _memory(evidence: Evidence) -> KeyFigure | None:
    known = [(run.peak_memory_bytes, run) for run in evidence.runs if run.peak_memory_bytes]
    if not known:
        return None
    value, run = max(known, key=lambda pair: pair[0])
    return KeyFigure(label="peak memory of a rank", value=format_bytes_binary(value), note=f"{run.group}, {run.label}")


def _accuracy(evidence: Evidence) -> KeyFigure | None:
    known = [(best, run) for run in evidence.runs if (best := best_accuracy(run)) is not None]
    if len(known) < 2 or len({run.dataset for _, run in known}) > 1:
        return None
    value, run = max(known, key=lambda pair: pair[0])
    return KeyFigure(
        label="best validation accuracy", value=format_percent(value, digits=2), note=f"{run.group}, {run.label}"
    )
