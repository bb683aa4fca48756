"""Runs all checks over a record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stepscope.machine.checks import REGISTRY
from stepscope.machine.judging import Outcome, Status
from stepscope.records.environment import EnvironmentRecord

SECTIONS = ("environment", "gpus", "links", "network", "launcher")
"""In the order they are shown; sections of third-party checks follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckVerdict:
    """One check's outcome; ``key`` is the check's file name."""

    key: str
    section: str
    title: str
    outcome: Outcome


def judge(record: EnvironmentRecord) -> tuple[CheckVerdict, ...]:
    """A verdict of every check, in the order they are shown. Pure: the same record gives the same verdicts anywhere."""
    checks = [(key, REGISTRY.load(key)) for key in REGISTRY.names()]
    checks.sort(key=lambda item: (_place(item[1].section), item[1].section, item[1].order, item[0]))
    return tuple(
        CheckVerdict(key=key, section=check.section, title=check.title, outcome=check.run(record))
        for key, check in checks
    )


def tally(verdicts: tuple[CheckVerdict, ...]) -> Mapping[str, int]:
    """How many checks ended in each status: ``{"pass": 12, "warn": 2, "fail": 0, "skip": 9}``."""
    return {status.value: sum(v.outcome.status is status for v in verdicts) for status in Status}


def _place(section: str) -> int:
    return SECTIONS.index(section) if section in SECTIONS else len(SECTIONS)
