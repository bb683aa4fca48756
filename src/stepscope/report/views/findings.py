"""Findings (what is wrong, its cost, what to do), and experiments: expected against measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stepscope.core.units import format_percent, format_plus_minus
from stepscope.core.words import counted
from stepscope.records.finding import Finding
from stepscope.records.nouns import Measured
from stepscope.report.table import (
    Column,
    Format,
    Table,
    Tone,
    Value,
    duration,
    flops,
    group_column,
    lead_column,
    percent,
    size,
    tabled,
    unknown,
    whole,
    wording,
)
from stepscope.report.views import View
from stepscope.results.experiments import Expectation, Verdict

_FINDINGS_TONES: dict[str, Tone] = {"problem": "bad", "warning": "warn", "info": "good"}


def findings_table(findings: Sequence[Finding]) -> Table:
    """Return the table: one line a finding, in their order: the largest stake first."""
    stakes = any(finding.stake_fraction is not None for finding in findings)
    returns = (
        "returns: share of the step (of a trace's window) that a fix could recover at most; –: not a matter of time."
    )
    return tabled(
        "findings",
        "Findings",
        findings,
        lead_column("severity", "severity", lambda f: wording(f.severity, tone=_FINDINGS_TONES[f.severity])),
        lead_column("title", "finding", "title"),
        Column("stake_fraction", "returns", "stake_fraction", Format(lambda x: format_percent(x, digits=0))),
        Column("subject", "about", lambda f: f.subject or None, drop=4),
        Column("evidence", "evidence", lambda f: "; ".join(f.evidence) or None, drop=2),
        Column("confidence", "confidence", lambda f: f.certainty or None, drop=3),
        Column("advice", "what to do", lambda f: "; ".join(a.text for a in f.advice) or None, drop=1),
        Column("command", "command", lambda f: "; ".join(a.command for a in f.advice if a.command) or None, drop=1),
        Column("rule", "rule", "rule", drop=5),
        footnotes=(returns,) if stakes else (),
    )


_FORMATS: dict[str, Format] = {"time": duration, "bytes": size, "share": percent, "flops": flops, "whole": whole}
_EXPERIMENT_TONES: dict[str, Any] = {"agrees": "good", "differs": "warn", "undecided": "dim"}
_REST: dict[Verdict, str] = {"differs": "differ", "undecided": "undecided"}
_NAMED = 4


def experiment_table(checks: Sequence[Expectation]) -> Table:
    """Return the table: a row for each figure; none where no run is an experiment."""
    return tabled(
        "experiment",
        "Expected and measured",
        checks,
        group_column("subject", "run", _check_heading),
        lead_column("quantity", "quantity", "quantity"),
        Column("expected", "expected", _expected_value, align="right"),
        Column("measured", "measured", lambda c: _check_value(c, c.measured), align="right"),
        Column("low", "95% from", lambda c: _interval_end_value(c, "low"), align="right"),
        Column("high", "to", lambda c: _interval_end_value(c, "high"), align="right"),
        Column("verdict", "verdict", lambda c: wording(c.verdict, tone=_EXPERIMENT_TONES[c.verdict])),
        Column("model", "expected by", "model", drop=1),
        footnotes=(conclusion(checks), _READING),
        notes=reasons(checks),
    )


_READING = (
    "agrees: the 95% interval of what was measured meets what is expected, within the ± that its model leaves out; differs: "
    "it does not; undecided: a figure or its interval is missing, or the interval so wide that it would agree with anything"
)


def conclusion(checks: Sequence[Expectation]) -> str:
    """Write ``9 of 12 figures agree with what is expected; differ: 2; undecided: 1``."""
    counts = Counter(check.verdict for check in checks)
    rest = [f"{word}: {counts[verdict]}" for verdict, word in _REST.items() if counts[verdict]]
    return "; ".join([f"{counts['agrees']} of {counted(len(checks), 'figure')} agree with what is expected", *rest])


def reasons(checks: Sequence[Expectation]) -> tuple[str, ...]:
    """Say why figures differ or are undecided, each reason once with those that it is about."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for check in checks:
        if check.reason:
            named = f"{check.quantity} of {check.subject}"
            by_reason.setdefault((check.verdict, check.reason), []).append(named)
    return tuple(f"{verdict}: {reason} ({_first_names(names)})" for (verdict, reason), names in by_reason.items())


def _first_names(names: Sequence[str]) -> str:
    return "; ".join([*names[:_NAMED], *([f"and {len(names) - _NAMED} more"] if len(names) > _NAMED else [])])


def document(checks: Sequence[Expectation]) -> list[dict[str, Any]]:
    """Return the document for ``--json``: base units, unknown is null."""
    return [
        {
            "run": _check_heading(c), "quantity": c.quantity, "unit": _FORMATS[c.unit].unit,
            "expected": None if c.expected is None else c.expected.value,
            "measured": None if c.measured is None else c.measured.value,
            "low": None if c.measured is None else c.measured.low,
            "high": None if c.measured is None else c.measured.high,
            "tolerance": c.tolerance, "verdict": c.verdict, "reason": c.reason or None, "model": c.model,
        }
        for c in checks
    ]  # fmt: skip


def _check_heading(check: Expectation) -> str:
    return f"{check.subject}: {check.detail}" if check.detail else check.subject


def _expected_value(check: Expectation) -> Value:
    """Write what is expected with what the model leaves out: ``38.6 ms ±10%``."""
    value = _check_value(check, check.expected)
    slack = f" {format_plus_minus(check.tolerance)}" if check.expected is not None and check.tolerance else ""
    return replace(value, text=value.text + slack)


def _check_value(check: Expectation, amount: Measured | None) -> Value:
    return unknown() if amount is None else _FORMATS[check.unit](_raw_number(check, amount.value))


def _interval_end_value(check: Expectation, side: str) -> Value:
    end = None if check.measured is None else getattr(check.measured, side)
    return _FORMATS[check.unit](None if end is None else _raw_number(check, end))


def _raw_number(check: Expectation, value: float) -> float:
    return int(value) if check.unit == "whole" and value == int(value) else value


VIEWS = (
    View("findings", table=findings_table),
    View("experiment", table=experiment_table),
)
