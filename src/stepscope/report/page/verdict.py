"""The verdict on a profiled job as the page shows it: the first screen, with the tree of a step as a bar."""

from __future__ import annotations

from collections.abc import Iterable

from stepscope.core.dataclass import dataclass
from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted, grouped, plural
from stepscope.records.finding import Advice, Diagnosis, JobVerdict, Skipped, VerdictPart
from stepscope.records.nouns import EXPOSED_COMM
from stepscope.report.screen_lines import also, by_rank, coverage, tree_rows
from stepscope.report.views.step_parts import PARTS
from stepscope.results.evidence import NEEDS
from stepscope.results.profiled_job import ProfiledJob

_GROUPS = {"computation": "computation", "communication": EXPOSED_COMM}
"""Parts that consist of others, which the bar shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRow:
    """A line of the tree. color: of its stretch in the bar; None: of those below it. cause: what the verdict calls it."""

    name: str
    depth: int
    time: str
    share: str
    ranks: str
    color: str | None
    cause: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BarPart:
    """A stretch of the bar of a step, in per cent of its width."""

    start: str
    width: str
    color: str
    said: str
    cause: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownVerdict:
    """next: what to do first. also: costs after the first. findings_title: where they come from, once."""

    headline: str
    coverage: tuple[tuple[str, str], ...]
    next: Advice | None
    also: tuple[str, ...]
    whole: str
    over: str
    rows: tuple[TreeRow, ...]
    bar: tuple[BarPart, ...]
    below: tuple[str, ...]
    findings_title: str


def shown_verdict(verdict: JobVerdict) -> ShownVerdict:
    """The verdict in words and widths."""
    return ShownVerdict(
        headline=verdict.headline,
        coverage=coverage(verdict),
        next=verdict.advice[0] if verdict.advice else None,
        also=also(verdict),
        whole=format_duration(sum(part.ns for part in verdict.tree)),
        over=f"mean of {verdict.steps_timed:,} timed {plural(verdict.steps_timed, 'step')}",
        rows=tuple(_row(depth, part, verdict) for depth, part in tree_rows(verdict.tree)),
        bar=_bar(verdict),
        below=(*verdict.evidence, *verdict.notes),
        findings_title=findings_title(verdict),
    )


def findings_title(verdict: JobVerdict | None) -> str:
    """Which steps the findings are about."""
    if verdict is None or not verdict.steps_profiled:
        return "Findings"
    return f"Findings in {counted(verdict.steps_profiled, 'profiled step')}"


def _row(depth: int, part: VerdictPart, verdict: JobVerdict) -> TreeRow:
    return TreeRow(
        name=_name(part),
        depth=depth,
        time=format_duration(part.ns),
        share=format_percent(part.share),
        ranks=by_rank(part),
        color=None if part.parts else _color(part),
        cause=verdict.kind if part.cause else None,
    )


def _name(part: VerdictPart) -> str:
    return _GROUPS.get(part.key) or PARTS.get(part.key, (part.key, ""))[0]


def _color(part: VerdictPart) -> str:
    return PARTS.get(part.key, PARTS["other"])[1]


def _bar(verdict: JobVerdict) -> tuple[BarPart, ...]:
    """The ends of the tree, side by side: together the whole width, whatever they sum to."""
    marked = {child.key for _, part in tree_rows(verdict.tree) if part.cause for _, child in tree_rows((part,))}
    ends = [part for _, part in tree_rows(verdict.tree) if not part.parts and part.ns > 0]
    total = sum(part.ns for part in ends)
    found, at = [], 0.0
    for part in ends:
        width = 100 * part.ns / total
        found.append(
            BarPart(
                start=f"{at:.2f}%",
                width=f"{width:.2f}%",
                color=_color(part),
                said=f"{_name(part)}: {format_duration(part.ns)}, {format_percent(part.share)}",
                cause=part.key in marked,
            )
        )
        at += width
    return tuple(found)


def profiled_machine(job: ProfiledJob) -> tuple[str, ...]:
    """What is known of each host of a profiled job; the command's where no rank made a step."""
    hosts = grouped(job.steps.diaries if job.steps is not None else (), lambda each: each.header.host)
    lines = []
    for host, diaries in hosts.items():
        said = [counted(len(diaries), "rank")]
        said += [
            f"{threads} intra-op {plural(threads, 'thread')} each"
            for threads in _one(d.header.threads for d in diaries)
        ]
        said += [f"{counted(cores, 'core')} usable" for cores in _one(d.header.cores for d in diaries)]
        lines.append(f"{host}: {', '.join(said)}")
    return tuple(lines) or (job.record.host,)


def _one(values: Iterable[int | None]) -> list[int]:
    """The value that all share; empty where there is none."""
    found = set(values)
    return [value for value in found if value is not None] if len(found) == 1 else []


def worth_saying(diagnosis: Diagnosis) -> tuple[Skipped, ...]:
    """Rules that could not look, without those that look at anything else than a profile."""
    others = {reason for reason, _ in NEEDS.values()}
    return tuple(each for each in diagnosis.skipped if each.reason not in others)
