"""Findings as a table: what is wrong, how much it costs, what to do."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.units import format_percent
from stepscope.records.finding import Finding
from stepscope.report.tables._common import Column, Row, Table, TableKind, Tone, Value, unknown

_TONES: dict[str, Tone] = {"problem": "bad", "warning": "warn", "info": "good"}


def build(findings: Sequence[Finding]) -> Table:
    """One line a finding, in their order: the largest stake first."""
    return Table(
        key="findings",
        title="Findings",
        columns=_COLUMNS,
        rows=tuple(Row(values=_values(finding)) for finding in findings),
        footnotes=(
            "returns: share of the step (of a trace's window) that fixing it returns at most; –: not a matter of time.",
        )
        if any(finding.stake_fraction is not None for finding in findings)
        else (),
    )


_COLUMNS = (
    Column(key="severity", title="severity", align="left", role="identity", lead=True),
    Column(key="title", title="finding", align="left", role="identity", lead=True),
    Column(key="stake_fraction", title="returns"),
    Column(key="subject", title="about", align="left", drop=4),
    Column(key="evidence", title="evidence", align="left", drop=2),
    Column(key="confidence", title="confidence", align="left", drop=3),
    Column(key="advice", title="what to do", align="left", drop=1),
    Column(key="command", title="command", align="left", drop=1),
    Column(key="rule", title="rule", align="left", drop=5),
)

TABLE = TableKind(key="findings", title="Findings", needs=("findings",), build=build)


def _values(finding: Finding) -> tuple[Value, ...]:
    commands = [advice.command for advice in finding.advice if advice.command]
    stake = finding.stake_fraction
    return (
        _text(finding.severity, _TONES.get(finding.severity, "plain")),
        _text(finding.title),
        unknown() if stake is None else Value(text=format_percent(stake, digits=0), raw=stake),
        _text(finding.subject),
        _text("; ".join(finding.evidence)),
        _text(finding.confidence),
        _text("; ".join(advice.text for advice in finding.advice)),
        _text("; ".join(commands)),
        _text(finding.rule),
    )


def _text(text: str | None, tone: Tone = "plain") -> Value:
    return unknown() if not text else Value(text=text, raw=text, tone=tone)
