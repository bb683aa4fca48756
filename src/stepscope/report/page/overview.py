"""What stands first: the findings as the page shows them, and the figures that everybody asks for.

The verdict on a profiled job as the page shows it: the first screen, with the tree of a step as a bar.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stepscope.core.dataclass import record
from stepscope.core.units import format_bandwidth, format_bytes_binary, format_duration, format_percent, format_size
from stepscope.core.words import counted, grouped, plural
from stepscope.diagnose.engine import believable
from stepscope.diagnose.narrator import all_clear, also, below, by_rank, coverage, part_name, slowed, tree_rows
from stepscope.diagnose.screen import of_dry
from stepscope.records.finding import Diagnosis, Finding, JobVerdict, Skipped, VerdictPart
from stepscope.records.nouns import EXPOSED_COMM
from stepscope.report.page.timeline import place
from stepscope.report.shared.parts import PARTS
from stepscope.report.table import rate
from stepscope.results.comm_facts import best_size
from stepscope.results.dry_job import DryJob
from stepscope.results.epochs import best_accuracy, exposed_fraction
from stepscope.results.evidence import NEEDS, Evidence, in_line
from stepscope.results.labels import failure_label, op_label
from stepscope.results.profiled_job import ProfiledJob
from stepscope.results.scaling import NOT_EQUIVALENT
from stepscope.traces.waits import waits_of

LEAST_EXPOSED = 0.05
"""Share of a step below which nobody acts on exposed communication."""

_SEVERITY_WORDS = {"problem": "problem", "warning": "warning", "info": "good to know"}


@record
class KeyFigure:
    """One key figure: what, how much, of what."""

    label: str
    value: str
    note: str = ""


def shown_findings(diagnosis: Diagnosis, timeline: Mapping[str, Any] | None = None) -> tuple[dict[str, Any], ...]:
    """Return the findings in their order, each with its stake in words and as the width of a bar (None: no matter of time).

    timeline: the page's, whose places they link to. explained: how the stake and a share of time in the title differ.
    """
    return tuple(
        {
            "finding": finding,
            "severity": _SEVERITY_WORDS[finding.severity],
            "stake": None if stake is None else f"a fix recovers up to {format_percent(stake)} of the step",
            "stake_width": None if stake is None else f"{min(max(stake, 0.0), 1.0) * 100:.1f}%",
            "explained": _stake_explanation(finding),
            "place": place(timeline or {"jobs": ()}, finding),
        }
        for finding in diagnosis.findings
        for stake in (finding.stake_fraction,)
    )


def _stake_explanation(finding: Finding) -> str | None:
    """Say why what was measured is not the stake; None where there are no two shares to tell apart."""
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
    """Return the finding that answers what is wrong: the first; None where there is nothing but good news."""
    return next((finding for finding in diagnosis.findings if finding.severity != "info"), None)


def headline(evidence: Evidence, diagnosis: Diagnosis) -> str:
    """Write one sentence: what was looked at and what was found."""
    counts = Counter[str](finding.severity for finding in diagnosis.findings)
    worries = [
        counted(counts[severity], word)
        for severity, word in (("problem", "problem"), ("warning", "warning"))
        if counts[severity]
    ]
    looked = [
        counted(number, word)
        for number, word in (
            (len(evidence.runs), "run"),
            (len(evidence.traced_jobs), "traced job"),
            (0 if evidence.traces else len(evidence.profiled), "profiled job"),
            (len(evidence.traces) if len(evidence.traces) > len(evidence.traced_jobs) else 0, "capture"),
            (len(evidence.comm), "collective measurement"),
            (len(evidence.dry), "dry run"),
        )
        if number
    ]
    quiet = len(diagnosis.quiet)
    subject = ", ".join(looked) or "nothing measured"
    if clear := all_clear(diagnosis, complete=evidence.complete, judged=evidence.judged):
        return f"{subject}: {clear}."
    return (
        f"{subject}: {' and '.join(worries)}"
        f" ({quiet} {plural(quiet, 'rule')} found nothing, {len(diagnosis.skipped)} lacked data)."
    )


def key_figures(evidence: Evidence, diagnosis: Diagnosis) -> tuple[KeyFigure, ...]:
    """Return at most eight key figures, those that the evidence has; none from a run that a finding declares wrong."""
    trusted = believable(evidence, diagnosis.findings)
    figures = [
        _failed_figure(evidence),
        _throughput_figure(trusted),
        _scaling_figure(trusted),
        _exposed_figure(trusted),
        None if evidence.profiled else _trace_figure(evidence),  # a profiled job's steps say it of all of them
        _busbw_figure(evidence),
        _memory_figure(trusted),
        _accuracy_figure(trusted),
    ]
    return tuple(figure for figure in figures if figure is not None)


def _failed_figure(evidence: Evidence) -> KeyFigure | None:
    """Return the number of runs without a result, with the first; None: all have one."""
    failed = [run for run in evidence.runs if run.status != "ok"]
    if not failed:
        return None
    first = failed[0]
    return KeyFigure(
        label="runs without a result",
        value=f"{len(failed)} of {len(evidence.runs)}",
        note=f"{in_line(first)}: {failure_label(first)}" + (", ..." if len(failed) > 1 else ""),
    )


def _throughput_figure(evidence: Evidence) -> KeyFigure | None:
    rated = [(run.samples_per_s.value, run) for run in evidence.runs if run.samples_per_s is not None]
    if len(rated) < 2 or len({(run.unit, run.dataset, run.model) for _, run in rated}) > 1:
        return None  # nothing to choose between, or figures of different work
    value, run = max(rated, key=lambda pair: pair[0])
    return KeyFigure(label="fastest setting", value=f"{rate.write(value)} {run.unit}/s", note=in_line(run))


def _scaling_figure(evidence: Evidence) -> KeyFigure | None:
    """Return the best speed-up of the largest job; None: nothing is compared."""
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


def _exposed_figure(evidence: Evidence) -> KeyFigure | None:
    """Return the largest share of exposed communication; None: it was not measured."""
    shares = [(share, run) for run in evidence.runs if (share := exposed_fraction(run)) is not None]
    if not shares:
        return None
    share, run = max(shares, key=lambda pair: pair[0])
    if share < LEAST_EXPOSED:
        return None
    return KeyFigure(label=f"most {EXPOSED_COMM}", value=format_percent(share), note=f"of the step, {in_line(run)}")


def _trace_figure(evidence: Evidence) -> KeyFigure | None:
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


def _busbw_figure(evidence: Evidence) -> KeyFigure | None:
    """Return the best bus bandwidth; None: no collective was measured."""
    best = best_size(evidence.comm)
    if best is None:
        return None
    return KeyFigure(
        label="best busbw",
        value=format_bandwidth(best.busbw_bytes_per_s or 0.0),
        note=f"{op_label(best)}, {format_size(best.size_bytes or 0)}, {counted(best.world_size, 'rank')}",
    )


def _memory_figure(evidence: Evidence) -> KeyFigure | None:
    peaks = [(run.peak_memory_bytes, run) for run in evidence.runs if run.peak_memory_bytes]
    if not peaks:
        return None
    value, run = max(peaks, key=lambda pair: pair[0])
    return KeyFigure(label="peak memory of a rank", value=format_bytes_binary(value), note=in_line(run))


def _accuracy_figure(evidence: Evidence) -> KeyFigure | None:
    accuracies = [(best, run) for run in evidence.runs if (best := best_accuracy(run)) is not None]
    if len(accuracies) < 2 or len({run.dataset for _, run in accuracies}) > 1:
        return None
    value, run = max(accuracies, key=lambda pair: pair[0])
    return KeyFigure(label="best validation accuracy", value=format_percent(value, digits=2), note=in_line(run))


def shown_verdict(verdict: JobVerdict) -> dict[str, Any]:
    """Return the verdict in words and widths: the tree's rows, and its ends as stretches of a bar, with their colours."""
    memory = verdict.memory
    return {
        "headline": verdict.headline,
        "coverage": (*coverage(verdict), *([("memory", memory.line)] if memory is not None and memory.line else [])),
        "why": verdict.why,
        "next": verdict.advice[0] if verdict.advice else None,
        "also": also(verdict),
        "whole": format_duration(sum(part.ns for part in verdict.tree)),
        "over": f"mean of {verdict.steps_timed:,} timed {plural(verdict.steps_timed, 'step')}",
        "rows": [_tree_row(depth, part, verdict.marked) for depth, part in tree_rows(verdict.tree)],
        "bar": _tree_bar(verdict.tree),
        "below": below(verdict),
        "findings_title": findings_title(verdict),
    }


def shown_dry(job: DryJob) -> dict[str, Any]:
    """Return what a dry run's first screen says, likewise."""
    screen = of_dry(job)
    return {
        "headline": screen.headline,
        "coverage": (("memory", screen.memory), *(("rests on", text) for text in screen.rests_on)),
        "why": screen.reasons,
        "next": next(iter(screen.advice), None),
        "also": (*screen.also, *(advice.text for advice in screen.advice[1:])),
        "whole": format_duration(sum(part.ns for part in screen.tree)),
        "over": screen.over,
        "rows": [_tree_row(depth, part, screen.mark) for depth, part in tree_rows(screen.tree)],
        "bar": _tree_bar(screen.tree),
        "below": screen.notes,
        "findings_title": "Findings",
    }


def findings_title(verdict: JobVerdict | None) -> str:
    """Say which steps the findings are about."""
    if verdict is None or not verdict.steps_profiled:
        return "Findings"
    worth = "" if verdict.window_sized else f", {slowed(verdict)}"
    return f"Findings in {counted(verdict.steps_profiled, 'profiled step')}{worth}"


def _tree_row(depth: int, part: VerdictPart, mark: str) -> dict[str, Any]:
    """Return one part of the verdict's tree, with its depth, time and share."""
    return {
        "name": part_name(part),
        "depth": depth,
        "time": format_duration(part.ns),
        "share": format_percent(part.share),
        "ranks": by_rank(part),
        "color": None if part.parts else _part_color(part),
        "cause": mark if part.cause else None,
    }


def _part_color(part: VerdictPart) -> str:
    return PARTS.get("transfer" if part.key == "communication" else part.key, PARTS["other"])[1]


def _tree_bar(tree: Sequence[VerdictPart]) -> list[dict[str, Any]]:
    """Return the ends of the tree, side by side: together they fill the whole width, whatever they sum to."""
    marked = {child.key for _, part in tree_rows(tree) if part.cause for _, child in tree_rows((part,))}
    ends = [part for _, part in tree_rows(tree) if not part.parts and part.ns > 0]
    total = sum(part.ns for part in ends)
    stretches: list[dict[str, Any]] = []
    at = 0.0
    for part in ends:
        width = 100 * part.ns / total
        stretch = {
            "start": f"{at:.2f}%",
            "width": f"{width:.2f}%",
            "color": _part_color(part),
            "cause": part.key in marked,
        }
        title = f"{part_name(part)}: {format_duration(part.ns)}, {format_percent(part.share)}"
        stretches.append({**stretch, "title": title})
        at += width
    return stretches


def profiled_machine(job: ProfiledJob) -> tuple[str, ...]:
    """Return what is known of each host of a profiled job; the command's where no rank made a step."""
    hosts = grouped(job.steps.diaries if job.steps is not None else (), lambda diary: diary.header.host)
    lines = []
    for host, diaries in hosts.items():
        facts = [counted(len(diaries), "rank")]
        facts += [
            f"{threads} intra-op {plural(threads, 'thread')} each"
            for threads in _single_value(d.header.threads for d in diaries)
        ]
        facts += [f"{counted(cores, 'core')} usable" for cores in _single_value(d.header.cores for d in diaries)]
        lines.append(f"{host}: {', '.join(facts)}")
    return tuple(lines) or (job.record.host,)


def _single_value(values: Iterable[int | None]) -> list[int]:
    """Return the value that all share; empty where there is none."""
    distinct = set(values)
    return [value for value in distinct if value is not None] if len(distinct) == 1 else []


def worth_saying(diagnosis: Diagnosis) -> tuple[Skipped, ...]:
    """Return the rules that could not look, without those that look at anything else than a profile."""
    others = {reason for reason, _ in NEEDS.values()}
    return tuple(skip for skip in diagnosis.skipped if skip.reason not in others)
