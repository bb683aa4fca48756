"""Rules, one file each: ``RULE``. A file's stem with hyphens is the rule's name: ``launch_bound.py`` is ``launch-bound``."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from stepscope.core.dataclass import dataclass
from stepscope.core.registry import Registry
from stepscope.diagnose.rule import Rule

REGISTRY: Registry[Rule] = Registry("stepscope.diagnose.rules", "RULE", "rule")


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What a rule's file says of the evidence that it asks for (:class:`Rule`), as written there."""

    name: str
    needs: tuple[str, ...]
    any_of: tuple[str, ...]
    rates: bool


@cache
def declared(key: str) -> Declared | Rule:
    """What the rule asks for, read from its file without importing what it works with; the rule itself of third parties."""
    if key not in REGISTRY.shipped:
        return REGISTRY.load(key)
    _, _, written = (Path(__path__[0]) / f"{key}.py").read_text(encoding="utf-8").rpartition("\nRULE = Rule(")
    needs, any_of = _names("needs", written), _names("any_of", written)
    if not needs and not any_of and not re.search(r"\blook=", written):
        needs = ("traces",)
    return Declared(
        name=key.replace("_", "-"),
        needs=needs,
        any_of=any_of,
        rates="good_news=True" in written or "scaling_budgets" in needs,
    )


def _names(field: str, written: str) -> tuple[str, ...]:
    found = re.search(rf"\b{field}=\(([^)]*)\)", written)
    return tuple(re.findall(r'"(\w+)"', found[1])) if found else ()
