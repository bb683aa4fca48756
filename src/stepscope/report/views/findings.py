"""Findings as a table: what is wrong, how much it costs, what to do."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.units import format_percent
from stepscope.records.finding import Finding
from stepscope.report.table import Column, Format, Table, Tone, said, tabled
from stepscope.report.view import View

_TONES: dict[str, Tone] = {"problem": "bad", "warning": "warn", "info": "good"}


def build(findings: Sequence[Finding]) -> Table:
    """One line a finding, in their order: the largest stake first."""
    stakes = any(finding.stake_fraction is not None for finding in findings)
    returns = (
        "returns: share of the step (of a trace's window) that a fix could recover at most; –: not a matter of time."
    )
    return tabled(
        "findings",
        "Findings",
        (
            Column(
                "severity", "severity", lambda f: said(f.severity, tone=_TONES[f.severity]), role="identity", lead=True
            ),
            Column("title", "finding", lambda f: f.title, role="identity", lead=True),
            Column(
                "stake_fraction", "returns", lambda f: f.stake_fraction, Format(lambda x: format_percent(x, digits=0))
            ),
            Column("subject", "about", lambda f: f.subject or None, drop=4),
            Column("evidence", "evidence", lambda f: "; ".join(f.evidence) or None, drop=2),
            Column("confidence", "confidence", lambda f: f.certainty or None, drop=3),
            Column("advice", "what to do", lambda f: "; ".join(a.text for a in f.advice) or None, drop=1),
            Column("command", "command", lambda f: "; ".join(a.command for a in f.advice if a.command) or None, drop=1),
            Column("rule", "rule", lambda f: f.rule, drop=5),
        ),
        findings,
        footnotes=(returns,) if stakes else (),
    )


VIEW = View(key="findings", title="Findings", needs=("findings",), table=build)
