"""Findings on a terminal: symptom, numbers, what to do."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from stepscope.cli.console import out
from stepscope.core.units import format_percent
from stepscope.records.finding import Finding

_STYLES = {"problem": "bold red", "warning": "bold yellow", "info": "bold green"}


def print_findings(findings: Iterable[Finding], *, confidence: bool = False) -> None:
    """Each as a block; confidence: also how far the evidence carries."""
    for finding in findings:
        print_finding(finding, confidence=confidence)


def print_finding(finding: Finding, *, confidence: bool = False) -> None:
    """``• title``, its evidence below, and after an arrow each thing to do with its command."""
    _hanging("• ", finding.title, _STYLES.get(finding.severity, "bold"))
    if finding.subject is not None and finding.subject not in finding.title:
        _hanging("  ", finding.subject, "dim")
    for line in finding.evidence:
        _hanging("    ", line, "")
    if confidence:
        stake = (
            ""
            if finding.stake_fraction is None
            else f", up to {format_percent(finding.stake_fraction)} of the step"
        )
        _hanging("    ", f"[{finding.rule}: {finding.confidence}{stake}]", "dim")
    for advice in finding.advice:
        _hanging("    → ", advice.text, "dim")
        if advice.command:  # in one piece: it is there to be pasted
            out().print(f"      $ {advice.command}", style="cyan", soft_wrap=True)


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
        out().print(line, style=style, soft_wrap=True)
