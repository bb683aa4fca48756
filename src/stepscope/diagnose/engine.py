"""All rules on one body of evidence."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import replace
from typing import get_args

from stepscope.diagnose.commands import concrete
from stepscope.diagnose.outcome import Outcome
from stepscope.diagnose.rule import Rule
from stepscope.diagnose.rules import REGISTRY
from stepscope.records.finding import Diagnosis, Finding, Priority, Quiet, Skipped
from stepscope.results.evidence import NEEDS, Evidence

NO_MATTER_OF_TIME = 0.2
"""Rank of a problem without a stake among shares of the step: a full device matters more than 4% of the time."""

SAME_TIME = 0.8
"""From this share of a symptom's stake on, the stake of its cause is the same time."""

_PRIORITY = get_args(Priority)
_SEVERITY = {"problem": 0, "warning": 1, "info": 2}


def all_rules() -> tuple[Rule, ...]:
    """Every registered rule, by name."""
    return tuple(REGISTRY.load(key) for key in REGISTRY.names())


def diagnose(evidence: Evidence, *, rules: Iterable[Rule] | None = None) -> Diagnosis:
    """What the rules say (None: all of them), findings as :class:`Diagnosis` orders them.

    Rules for good news run last, without the runs that another rule declares wrong.
    """
    findings: list[Finding] = []
    skipped: list[Skipped] = []
    quiet: list[Quiet] = []
    causes: dict[str, tuple[str, ...]] = {}
    for rule in sorted(all_rules() if rules is None else rules, key=lambda rule: rule.rates):
        causes[rule.name] = rule.explained_by
        trusted = believable(evidence, findings) if rule.rates else evidence
        outcome = check(rule, trusted)
        if isinstance(outcome, Skipped) and trusted is not evidence:
            outcome = replace(
                outcome, reason="another finding says that these runs are wrong or doubtful", command=None
            )
        if isinstance(outcome, Skipped):
            skipped.append(outcome)
        elif isinstance(outcome, Quiet):
            quiet.append(outcome)
        else:
            findings += _doubted(outcome, evidence)
    told = []
    for finding in findings:
        known = (f for f in findings if f.rule in causes[finding.rule] and _same_time(f, finding))
        cause = max(known, key=lambda f: f.stake_fraction or 0.0, default=None)
        if cause is None:
            told.append(finding)
        else:
            quiet.append(Quiet(rule=finding.rule, looked_at=f"{finding.title}: {cause.rule} names the cause"))
    return Diagnosis(
        findings=tuple(sorted(told, key=_order)),
        skipped=tuple(sorted(skipped, key=lambda each: each.rule)),
        quiet=tuple(sorted(quiet, key=lambda each: each.rule)),
    )


def _same_time(cause: Finding, symptom: Finding) -> bool:
    return cause.job == symptom.job and (cause.stake_fraction or 0.0) >= SAME_TIME * (symptom.stake_fraction or 1.0)


def believable(evidence: Evidence, findings: Iterable[Finding]) -> Evidence:
    """``evidence`` without the runs that ``findings`` declare wrong, and without speed-ups against them."""
    wrong = {run_id for finding in findings for run_id in finding.wrong_runs}
    if not wrong:
        return evidence
    return replace(
        evidence,
        runs=tuple(run for run in evidence.runs if run.run_id not in wrong),
        scaling=tuple(row for row in evidence.scaling if wrong.isdisjoint((row.run_id, row.baseline_id))),
        scaling_budgets=tuple(each for each in evidence.scaling_budgets if wrong.isdisjoint(each.run_ids)),
        cells=tuple(cell for cell in evidence.cells if cell.run.run_id not in wrong),
    )


def check(rule: Rule, evidence: Evidence) -> Outcome:
    """One rule; Skipped with the reason where what it needs is not there."""
    given = evidence
    evidence, cut = _whole(given)
    lacking = [need for need in rule.needs if not getattr(evidence, need)]
    if rule.any_of and not any(getattr(evidence, name) for name in rule.any_of):
        lacking.append("traces" if "traces" in rule.any_of and given.traces else rule.any_of[0])
    if lacking:
        reason, command = NEEDS[lacking[0]]
        if lacking[0] == "traces" and cut is not None:
            reason, command = cut, None
        return concrete(Skipped(rule=rule.name, reason=reason, command=command), given)
    return concrete(rule.check(evidence), given)


def _whole(evidence: Evidence) -> tuple[Evidence, str | None]:
    """``evidence`` without traces that support no finding, and why these do not; None where no trace is cut."""
    if not _is_cut(evidence):
        return evidence, None
    from stepscope.diagnose.fragments import why_no_traces, without_fragments

    return without_fragments(evidence), why_no_traces(evidence)


def _doubted(findings: Iterable[Finding], evidence: Evidence) -> Iterable[Finding]:
    if not _is_cut(evidence):
        return findings
    from stepscope.diagnose.fragments import doubted

    return doubted(findings, evidence)


def _is_cut(evidence: Evidence) -> bool:
    passes = (each for job in evidence.traces for each in job.summary.ranks)
    return any(note.kind == "truncated" for each in passes for note in each.notes)


def page_of(rule: Rule) -> str:
    """The rule's page: what its file says of it."""
    return (importlib.import_module(rule.module).__doc__ or "").strip()


def _order(finding: Finding) -> tuple[bool, int, float, int, bool, bool]:
    """Good news last; the rest by priority, stake, severity and certainty, of equals one with a subject first. A problem
    without a stake stands with large ones."""
    stake = finding.stake_fraction
    if stake is None:
        stake = NO_MATTER_OF_TIME if finding.severity == "problem" else 0.0
    sure = finding.confidence.startswith("certain")
    kind, grave = _PRIORITY.index(finding.priority), _SEVERITY[finding.severity]
    return finding.severity == "info", kind, -round(stake, 3), grave, not sure, finding.subject is None
