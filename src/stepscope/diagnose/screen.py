"""The first screen: what a command says first of whatever it looked at, in one form.

The verdict, what its end brings, what else there is, the time as a tree that adds up, why, what to do, what the figures rest
on, where the rest is. A job's timed steps, profiled steps alone and results of any other kind each fill what they know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from stepscope.core.dataclass import record
from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.diagnose import narrator
from stepscope.diagnose.rules import claimed_part
from stepscope.records.finding import Advice, Diagnosis, Finding, JobVerdict, VerdictPart
from stepscope.records.trace_summary import TraceSummary
from stepscope.stats.step_table import Numbers, StepTable, tree_of, window_table

if TYPE_CHECKING:
    from stepscope.results.dry_job import DryJob
    from stepscope.results.evidence import Evidence

Tone = Literal["problem", "warning", "good"]

MOST_REASONS = 5
"""Lines of evidence for the first finding."""

MOST_ADVICE = 3

MOST_ALSO = 4
"""Titles of further findings."""

_GRAVE = ("crash", "killed", "hang", "no-steps", "contended-machine")


@record
class Screen:
    """headline: without a full stop. stake: what its end brings at most, in words. also: what else costs time.

    tree: parts that sum to ``whole``; over: what that is the mean of, or whose; mark: what its marked part is the cause of.
    reasons, advice: of the headline. memory, notes: of a job. warnings: what is missing of the window.
    rests_on: lines on what was looked at. more: commands that show the rest.
    """

    headline: str
    tone: Tone
    running: bool = False
    stake: str = ""
    also: tuple[str, ...] = ()
    whole: str = "a step"
    over: str = ""
    tree: tuple[VerdictPart, ...] = ()
    mark: str = ""
    reasons: tuple[str, ...] = ()
    advice: tuple[Advice, ...] = ()
    memory: str = ""
    memory_grows: bool = False
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    rests_on: tuple[str, ...] = ()
    more: str = ""


def tone_of(verdict: JobVerdict) -> Tone:
    if verdict.kind in _GRAVE or narrator.soon(verdict) is not None:
        return "problem"
    return "good" if verdict.kind == "compute-bound" else "warning"


def of_job(verdict: JobVerdict, *, running: bool = False, warnings: Sequence[str] = (), more: str = "") -> Screen:
    """Make the screen of a job whose steps were timed. running: it goes on. warnings: what is missing of the window."""
    memory, coverage = verdict.memory, narrator.coverage_line(verdict)
    return Screen(
        headline=verdict.headline,
        tone=tone_of(verdict),
        running=running,
        stake=narrator.faster(verdict.stake_fraction) if verdict.stake_fraction else "",
        also=narrator.also(verdict),
        over=f"mean of {counted(verdict.steps_timed, 'timed step')}",
        tree=verdict.tree,
        mark=verdict.marked,
        reasons=verdict.why,
        advice=verdict.advice[:1],
        memory="" if memory is None else memory.line,
        memory_grows=memory is not None and bool(memory.growth),
        warnings=tuple(warnings),
        notes=narrator.below(verdict),
        rests_on=(coverage,) if coverage else (),
        more=more,
    )


def of_dry(job: DryJob, *, more: str = "") -> Screen:
    """Make the screen of a dry run that has a step on some world."""
    from stepscope.diagnose import dry_words

    step = job.largest
    return Screen(
        headline=dry_words.headline(job),
        tone=dry_words.tone(step),
        also=tuple(dry_words.also(job)),
        over=f"80%: {format_duration(step.low_ns)} to {format_duration(step.high_ns)}",
        tree=dry_words.tree(step),
        mark="" if step.limit not in dry_words.WAITING else "limits it",
        reasons=tuple(dry_words.reasons(job)),
        advice=tuple(dry_words.advice(job)),
        memory="; ".join(dry_words.memory(job)),
        notes=tuple(dry_words.notes(job)),
        rests_on=(dry_words.rests_on(job),),
        more=more,
    )


def screen_of(evidence: Evidence, diagnosis: Diagnosis, timed: JobVerdict | None) -> Screen:
    """Make the screen of whatever was judged. timed: the verdict on all timed steps of a job, where there is one."""
    return of_evidence(evidence, diagnosis) if timed is None else of_job(timed)


def of_evidence(evidence: Evidence, diagnosis: Diagnosis) -> Screen:
    """Make the screen of a diagnosis whose further findings follow in full (``further``); of a dry run all of them."""
    if (job := evidence.dry_job) is not None:
        return of_dry(job)
    first = diagnosis.findings[0] if diagnosis.findings else None
    about = [trace for trace in evidence.traces if first is not None and first.job == trace.name]
    if not about and not (evidence.runs or evidence.comm or evidence.nccl):
        about = list(evidence.traces)
    screen = _of_findings(
        diagnosis,
        rests_on=narrator.looked_at(evidence),
        complete=evidence.complete,
        judged=evidence.judged,
    )
    if evidence.profiled and not diagnosis.quiet and first is None:
        screen = replace(
            screen, headline="No rule has anything to look at without a window of profiled steps: stepscope profile"
        )
    following = further(diagnosis)
    screen = replace(screen, also=(f"below: {narrator.counts(following)}",) if following else ())
    return _with_window(screen, about[0].summary, diagnosis) if len(about) == 1 else screen


def of_traces(summary: TraceSummary, diagnosis: Diagnosis, *, rests_on: str, more: str) -> Screen:
    """Make the screen of profiled steps without a diary; tables follow. more: the command that explains every finding."""
    screen = _of_findings(diagnosis, rests_on=rests_on, complete=not summary.losses)
    screen = _brief_screen(screen, further(diagnosis), diagnosis, also=(), more=more)
    return _with_window(screen, summary, diagnosis)


def of_runs(evidence: Evidence, diagnosis: Diagnosis, *, figures: Sequence[str], more: str) -> Screen:
    """Make the screen of runs measured side by side; tables follow. figures: the first, in words. more: as of traces."""
    screen = _of_findings(diagnosis, rests_on=narrator.looked_at(evidence), complete=evidence.complete)
    return _brief_screen(screen, narrator.answers_first(further(diagnosis)), diagnosis, also=figures, more=more)


def further(diagnosis: Diagnosis) -> tuple[Finding, ...]:
    """The findings that a screen does not explain: all but the first; observations, where there is no problem."""
    findings = diagnosis.findings
    return findings if all(finding.severity == "info" for finding in findings) else findings[1:]


def _of_findings(diagnosis: Diagnosis, *, rests_on: str, complete: bool, judged: bool = True) -> Screen:
    """Make the screen of the first finding, or say that there is none, or nothing to judge.

    rests_on: a line on what was looked at. complete, judged: as of ``narrator.all_clear``.
    """
    clear = narrator.all_clear(diagnosis, complete=complete, judged=judged)
    if clear is not None:
        sound = bool(diagnosis.quiet) and complete and judged
        return Screen(headline=_capitalised(clear), tone="good" if sound else "warning", rests_on=(rests_on,))
    first = diagnosis.findings[0]
    stake = first.stake_fraction
    return Screen(
        headline=_capitalised(narrator.headline(first)),
        tone="problem" if first.severity == "problem" else "warning",
        stake=f"{narrator.faster(stake)}: {format_percent(stake)} of the time" if stake else "",
        reasons=first.evidence,
        advice=first.advice,
        rests_on=(rests_on, f"{first.certainty} (rule {first.rule})"),
    )


def _brief_screen(
    screen: Screen, following: Sequence[Finding], diagnosis: Diagnosis, *, also: Sequence[str], more: str
) -> Screen:
    """Keep no more of each than fits above tables. also: lines before the titles of the findings that follow."""
    left = len(following) - MOST_ALSO
    return replace(
        screen,
        also=(*also, *map(narrator.headline, following[:MOST_ALSO])),
        reasons=screen.reasons[:MOST_REASONS],
        advice=screen.advice[:MOST_ADVICE],
        more=more + (f": {counted(left, 'more finding')}" if left > 0 else "") if diagnosis.findings else "",
    )


def _with_window(screen: Screen, summary: TraceSummary, diagnosis: Diagnosis) -> Screen:
    """Make the window the tree: that of the rank that is median in what the first finding is about."""
    table = window_table(summary.ranks)
    if table is None:
        return screen
    first = diagnosis.findings[0] if screen.reasons else None
    key = "step" if first is None else claimed_part(first)
    of_part = table.parts_ns[{"waiting": "communication", "step": "computation"}.get(key, key)]
    ranked = np.argsort((of_part / np.maximum(table.whole_ns, 1.0))[:, 0], kind="stable")
    row = int(ranked[(table.ranks - 1) // 2])
    rank = table.rank_numbers[row]
    steps = len(next(p for p in summary.ranks if p.facts.rank == rank).steps)
    parts = dict(table.parts_ns) | _waits_of_rank(summary, table, row)
    return replace(
        screen,
        whole="the window",
        over=("1 rank" if table.ranks == 1 else f"rank {rank}, the median of {table.ranks} ranks")
        + (f", {counted(steps, 'step')}" if steps else ""),
        tree=tree_of(
            table, parts, marked="communication" if key == "waiting" and "waiting" not in parts else key, row=row
        ),
        mark="" if first is None else first.rule,
    )


def _waits_of_rank(summary: TraceSummary, table: StepTable, row: int) -> dict[str, Numbers]:
    """Return what communication of this rank consists of, where it is known."""
    from stepscope.diagnose.trace_facts import MAINLY_LACKING, lacking_share
    from stepscope.traces.waits import waits_of

    waits = waits_of(summary.collectives).get(table.rank_numbers[row])
    exposed = float(table.comm_ns[row, 0])
    if waits is None or not exposed or lacking_share(summary) >= MAINLY_LACKING:
        return {}
    waiting = np.full_like(table.comm_ns, np.nan)
    waiting[row] = min(waits.exposed_ns, exposed)
    both = {"transfer": exposed - waiting, "waiting": waiting}
    return {key: values for key, values in both.items() if values[row, 0]}


def _capitalised(title: str) -> str:
    """Capitalise a title unless it begins with a name as code has it: ``torch.compile``, ``all_reduce``, ``num_workers``."""
    word = title.split(" ", 1)[0]
    plain = word.rstrip(":,").replace("-", "").isalpha() and word.islower()
    return title[0].upper() + title[1:] if plain else title
