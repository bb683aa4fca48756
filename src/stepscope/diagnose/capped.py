"""A rule that fires for dozens of groups: the worst in full, the rest in one line each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from stepscope.core.words import counted
from stepscope.records.finding import Finding

IN_FULL = 4
"""Findings of one rule that a reader gets in full."""

_LINES = 12


def capped(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """``findings`` of one rule, largest stake first; from the fifth on as lines of one finding without a stake."""
    ranked = sorted(findings, key=lambda finding: -(finding.stake_fraction or 0.0))
    rest = ranked[IN_FULL:]
    if len(rest) < 2:
        return tuple(ranked)
    lines = [f"{finding.subject}: {finding.title}" for finding in rest[:_LINES]]
    if len(rest) > _LINES:
        lines.append(f"and {len(rest) - _LINES} more")
    folded = replace(
        rest[0],
        title=f"{rest[0].rule}: {counted(len(rest), 'more case')} of the same kind",
        evidence=tuple(lines),
        stake_fraction=None,
        advice=(),
        subject=None,
    )
    return (*ranked[:IN_FULL], folded)
