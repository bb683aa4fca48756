"""Rules, one file each: ``RULE``. A file's stem with hyphens is the rule's name: ``launch_bound.py`` is ``launch-bound``."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import cast

from stepscope.core.dataclass import dataclass
from stepscope.core.registry import Registry
from stepscope.diagnose.rule import Asks, Rule
from stepscope.records.finding import Finding, VerdictKind

REGISTRY: Registry[Rule] = Registry("stepscope.diagnose.rules", "RULE", "rule")


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared(Asks):
    """What a rule's file says of the evidence that it asks for, as written there."""

    rates: bool
    kind: VerdictKind | None
    names_cause: bool


@cache
def declared(key: str) -> Declared | Rule:
    """What the rule asks for, read from its file without importing what it works with; the rule itself of third parties."""
    if key not in REGISTRY.shipped:
        return REGISTRY.load(key)
    _, _, written = (Path(__path__[0]) / f"{key}.py").read_text(encoding="utf-8").rpartition("\nRULE = ")
    needs, any_of = _names("needs", written), _names("any_of", written)
    if not needs and not any_of and not re.search(r"\blook=", written):
        needs = ("traces",)
    return Declared(
        name=key.replace("_", "-"),
        needs=needs,
        any_of=any_of,
        sees=_names("sees", written),
        unseen=_text("unseen", written) or "",
        unseen_command=_text("unseen_command", written),
        rates="good_news=True" in written or "scaling_budgets" in needs,
        kind=cast("VerdictKind | None", kind[1] if (kind := re.search(r'\bkind="([a-z-]+)"', written)) else None),
        names_cause="names_cause=True" in written,
    )


def kind_of(finding: Finding) -> VerdictKind | None:
    """What a finding is about in the verdict's terms, as its rule declares."""
    rule = _declared_by(finding)
    return None if rule is None else rule.kind


def names_cause(finding: Finding) -> bool:
    """Whether it says why the time is spent, as its rule declares."""
    rule = _declared_by(finding)
    return rule is not None and rule.names_cause


def _declared_by(finding: Finding) -> Declared | Rule | None:
    key = finding.rule.replace("-", "_")
    return declared(key) if key in REGISTRY.names() else None


def _names(field: str, written: str) -> tuple[str, ...]:
    found = re.search(rf"\b{field}=\(([^)]*)\)", written)
    return tuple(re.findall(r'"(\w+)"', found[1])) if found else ()


def _text(field: str, written: str) -> str | None:
    found = re.search(rf'\b{field}="([^"]*)"', written)
    return found and found[1]
