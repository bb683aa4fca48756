"""Rules, one file each: ``RULE``. A file's stem with hyphens is the rule's name: ``launch_bound.py`` is ``launch-bound``."""

from __future__ import annotations

from functools import cache

from stepscope.core.registry import Registry
from stepscope.diagnose.rule import Claim, Declared, Rule
from stepscope.records.finding import Finding, VerdictKind

REGISTRY: Registry[Rule] = Registry("stepscope.diagnose.rules", "RULE", "rule")


@cache
def declared(key: str) -> Declared:
    """Return what a rule asks for, from its file without importing what it works with; of third parties the rule itself."""
    if key not in REGISTRY.shipped:
        return REGISTRY.load(key)
    fields = REGISTRY.written(key, Declared.__dataclass_fields__)
    if fields.keys().isdisjoint(("needs", "any_of", "sees")):
        fields["needs"] = ("traces",)
    return Declared(**{"name": key.replace("_", "-"), **fields})


def kind_of(finding: Finding) -> VerdictKind | None:
    """Return what a finding is about in the verdict's terms, as its rule declares."""
    rule = _declared_by(finding)
    return None if rule is None else rule.kind


def names_cause(finding: Finding) -> bool:
    """Whether it says why the time is spent, as its rule declares."""
    rule = _declared_by(finding)
    return rule is not None and rule.names_cause


def claimed_part(finding: Finding) -> Claim:
    """Return the part of a step that the finding's rule claims first; of one that claims none, all of it."""
    rule = _declared_by(finding)
    return rule.claims[0] if rule is not None and rule.claims else "step"


def _declared_by(finding: Finding) -> Declared | None:
    key = finding.rule.replace("-", "_")
    return declared(key) if key in REGISTRY.names() else None
