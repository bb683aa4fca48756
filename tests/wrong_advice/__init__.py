"""For every rule: evidence on which its advice is right, and the same with one fact that makes it wrong.

``case("rule_key")`` registers a function of a folder that returns a Case; test_advice_by_job.py asks for one of each rule.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from stepscope.records.finding import Finding, Quiet, Skipped
from stepscope.results.evidence import Evidence

Outcome = tuple[Finding, ...] | Quiet | Skipped


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """right: the rule fires and says ``advice``, rightly. wrong: the same symptom, and ``advice`` would be wrong or too
    certain there; ``instead``: what is said in its place, in a finding or by a quiet rule."""

    right: Evidence
    wrong: Evidence
    advice: str
    instead: str


Maker = Callable[[Path], Case]

CASES: dict[str, list[Maker]] = defaultdict(list)


def case(rule: str) -> Callable[[Maker], Maker]:
    def registered(make: Maker) -> Maker:
        CASES[rule].append(make)
        return make

    return registered


@cache
def made(make: Maker) -> Case:
    """The case, made once."""
    with TemporaryDirectory() as folder:
        return make(Path(folder))


def words(outcome: Outcome) -> str:
    """Everything that an outcome tells a reader."""
    if isinstance(outcome, Quiet):
        return outcome.looked_at
    if isinstance(outcome, Skipped):
        return outcome.reason
    lines = [
        line
        for f in outcome
        for line in (
            f"[{f.severity}]",
            f.title,
            *f.evidence,
            f.confidence,
            *(f"{a.text} {a.command}" for a in f.advice),
        )
    ]
    return "".join(f"{line}\n" for line in lines)
