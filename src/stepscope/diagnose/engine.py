"""All rules on one body of evidence."""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from stepscope.diagnose.commands import concrete
from stepscope.diagnose.outcome import Outcome
from stepscope.diagnose.rule import Rule
from stepscope.diagnose.rules import REGISTRY
from stepscope.records.finding import Diagnosis, Finding, Quiet, Skipped
from stepscope.results.evidence import NEEDS, Evidence

NO_MATTER_OF_TIME = 0.2
"""Rank of a problem without a stake among shares of the step: wrong results matter more than 4 % of the time."""

_SEVERITY = {"problem": 0, "warning": 1, "info": 2}


def all_rules() -> tuple[Rule, ...]:
    """Every registered rule, by name."""
    return tuple(REGISTRY.load(key) for key in REGISTRY.names())


def diagnose(evidence: Evidence, *, rules: Iterable[Rule] | None = None) -> Diagnosis:
    """What the rules say (None: all of them). Findings: largest stake first, unknown stakes after, good news last."""
    findings: list[Finding] = []
    skipped: list[Skipped] = []
    quiet: list[Quiet] = []
    for rule in all_rules() if rules is None else rules:
        outcome = check(rule, evidence)
        if isinstance(outcome, Skipped):
            skipped.append(outcome)
        elif isinstance(outcome, Quiet):
            quiet.append(outcome)
        else:
            findings += outcome
    return Diagnosis(findings=tuple(sorted(findings, key=_order)), skipped=tuple(skipped), quiet=tuple(quiet))


def check(rule: Rule, evidence: Evidence) -> Outcome:
    """One rule; Skipped with the reason where what it needs is not there."""
    for need in rule.needs:
        if not getattr(evidence, need):
            reason, command = NEEDS[need]
            return concrete(Skipped(rule=rule.name, reason=reason, command=command), evidence)
    if rule.any_of and not any(getattr(evidence, name) for name in rule.any_of):
        reason, command = NEEDS[rule.any_of[0]]
        return concrete(Skipped(rule=rule.name, reason=reason, command=command), evidence)
    return concrete(rule.check(evidence), evidence)


def page_of(rule: Rule) -> str:
    """The rule's page: what its file says of it."""
    return (importlib.import_module(rule.module).__doc__ or "").strip()


def _order(finding: Finding) -> tuple[bool, float, int]:
    """Good news last; the rest by stake, then by severity. A problem that is no matter of time stands with large stakes."""
    stake = finding.stake_fraction
    if stake is None:
        stake = NO_MATTER_OF_TIME if finding.severity == "problem" else 0.0
    return finding.severity == "info", -stake, _SEVERITY[finding.severity]
