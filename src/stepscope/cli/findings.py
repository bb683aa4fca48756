"""Findings on a terminal: symptom, numbers, what to do."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli.console import log, out, say
from stepscope.core.units import format_percent
from stepscope.core.words import counted
from stepscope.diagnose.headlines import all_clear, counts, headline, remainder, shown
from stepscope.records.finding import Diagnosis, Finding

if TYPE_CHECKING:
    from stepscope.report.conditions import Condition
    from stepscope.results.evidence import Evidence

SHOWN_FIGURES = 2
_STYLES = {"problem": "bold red", "warning": "bold yellow", "info": "bold green"}


def print_findings(findings: Iterable[Finding], *, confidence: bool = False) -> None:
    """Each as a block; confidence: also how far the evidence carries."""
    for finding in findings:
        print_finding(finding, confidence=confidence)


def print_verdict(evidence: Evidence, diagnosis: Diagnosis, looked_at: str) -> None:
    """What was found, and in what. looked_at: one line on the evidence."""
    clear = all_clear(diagnosis, complete=evidence.complete)
    sound = clear is not None and bool(diagnosis.quiet) and evidence.complete
    worst = "info" if sound else diagnosis.findings[0].severity if clear is None else "warning"
    say(clear or counts(diagnosis.findings), _STYLES[worst])
    say(looked_at, "dim")


def print_figures(evidence: Evidence, diagnosis: Diagnosis) -> None:
    """What a run of ours gave, at most three lines before its tables: what was found, and its first key figures."""
    from stepscope.report.page.overview import key_figures

    clear = all_clear(diagnosis, complete=evidence.complete)
    say(clear or counts(diagnosis.findings), "bold")
    for figure in key_figures(evidence, diagnosis)[:SHOWN_FIGURES]:
        note = f" ({figure.note})" if figure.note else ""
        say(f"{figure.label}: {figure.value}{note}")
    out().print()


def print_read(evidence: Evidence, *, most: int | None, rest: str = "--all") -> None:
    """After a blank line what of a folder was read and what was not, then notes and remarks; at most so many of each.

    rest: where more of them are.
    """
    from stepscope.report.files_found import lines

    files = lines(evidence)
    if files or evidence.said:
        out().print()
    for state, text in files[:most]:
        _hanging(f"{state:<9} ", text, "dim" if state == "read" else "yellow")
    for mark, said, style in (("!", evidence.notes, "yellow"), ("·", evidence.remarks, "dim")):
        for text in said[:most]:
            say(f"{mark} {text}", style)
    for all_, what in ((files, "file kind"), (evidence.notes, "note"), (evidence.remarks, "remark")):
        if most is not None and all_[most:]:
            say(f"! {counted(len(all_) - most, f'more {what}')}: {rest}", "yellow")


def print_headlines(run: Path, diagnosis: Diagnosis) -> None:
    """What the rules find in a run folder, a line each, and the command that explains them."""
    for finding in shown(diagnosis):
        _hanging("• ", headline(finding), _STYLES.get(finding.severity, "bold"))
    if diagnosis.findings:
        import shlex

        command = f"stepscope diagnose {shlex.quote(str(run))}"
        say(f"{remainder(diagnosis)}evidence and advice: {command}", "dim")


def print_finding(finding: Finding, *, confidence: bool = False) -> None:
    """``• title``, its evidence below, and after an arrow each thing to do with its command."""
    _hanging("• ", finding.title, _STYLES.get(finding.severity, "bold"))
    if finding.subject is not None and finding.subject not in finding.title:
        _hanging("  ", finding.subject, "dim")
    for line in finding.evidence:
        _hanging("    ", line, "")
    if confidence:
        stake = (
            "" if finding.stake_fraction is None else f", up to {format_percent(finding.stake_fraction)} of the step"
        )
        _hanging("    ", f"[{finding.rule}{stake}: {finding.certainty}]", "dim")
    for advice in finding.advice:
        _hanging("    → ", advice.text, "dim")
        if advice.command:  # in one piece: it is there to be pasted
            say(f"      $ {advice.command}", "cyan")


def say_unchecked(conditions: Iterable[Condition], values: Mapping[str, float | None], diagnosis: Diagnosis) -> None:
    """A check of what nobody could look at passes; it must not do so in silence."""
    skipped = {each.rule: each.reason for each in diagnosis.skipped}
    for condition in conditions:
        unknown_number = condition.op is not None and values[condition.key] is None
        reason = "this figure is unknown here" if unknown_number else skipped.get(condition.key)
        if reason is not None:
            say_not_checked(condition, reason)


def say_not_checked(condition: Condition, reason: str) -> None:
    """One condition of ``--fail-if`` that could not fail, and why."""
    log(f"! --fail-if {condition.text!r} was not checked: {reason}", "yellow")


def _hanging(mark: str, text: str, style: str) -> None:
    """Text after a mark, further lines under its beginning."""
    width = max(out().width, 40)
    wrapped = textwrap.wrap(
        text,
        min(width, 110),
        initial_indent=mark,
        subsequent_indent=" " * len(mark),
        break_long_words=False,
        break_on_hyphens=False,
    )
    for line in wrapped or [mark]:
        say(line, style)
