"""What the rules found, a line a finding, as `bench`, `comm` and summary.md show it; or that they found nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from stepscope.core.words import counted
from stepscope.records.finding import Diagnosis, Finding

SHOWN = 4

ANSWERS = "fastest-strategy"
"""The rule that answers what runs side by side were measured for: its findings are shown although they cost nothing."""


def headline(finding: Finding) -> str:
    """The finding's title, with what it is about where the title does not say so."""
    about = "" if finding.subject is None or finding.subject in finding.title else f" ({finding.subject})"
    return f"{finding.title}{about}"


def all_clear(diagnosis: Diagnosis, *, complete: bool) -> str | None:
    """The sentence for a diagnosis without a problem; None where it has one. complete: all that was given was read."""
    if any(finding.severity != "info" for finding in diagnosis.findings):
        return None
    looked = len(diagnosis.quiet) + len({finding.rule for finding in diagnosis.findings})
    if not looked:
        return f"nothing was checked: {counted(len(diagnosis.skipped), 'rule')} skipped for lack of data"
    if not complete:
        return f"{counted(looked, 'rule')} found no problem in what was read; what was not is listed below"
    return f"nothing stands out: {counted(looked, 'rule')} found no problem"


def counts(findings: Iterable[Finding]) -> str:
    """``1 problem, 2 warnings``."""
    found = Counter[str](finding.severity for finding in findings)
    words = (("problem", "problem"), ("warning", "warning"), ("info", "observation"))
    return ", ".join(counted(found[key], word) for key, word in words if found[key])


def shown(diagnosis: Diagnosis) -> tuple[Finding, ...]:
    """The first ones, and what the comparison says, however far down."""
    first, rest = diagnosis.findings[:SHOWN], diagnosis.findings[SHOWN:]
    return (*first, *[finding for finding in rest if finding.rule == ANSWERS][:SHOWN])


def remainder(diagnosis: Diagnosis) -> str:
    """``2 more findings; `` where not all are shown, else nothing."""
    more = len(diagnosis.findings) - len(shown(diagnosis))
    return f"{counted(more, 'more finding')}; " if more > 0 else ""
