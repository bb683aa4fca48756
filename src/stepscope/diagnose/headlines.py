"""What the rules found, a line a finding: what `bench` and `comm` print at their end and write into summary.md."""

from __future__ import annotations

from stepscope.core.words import counted
from stepscope.records.finding import Diagnosis, Finding

SHOWN = 4


def headline(finding: Finding) -> str:
    """The finding's title, with what it is about where the title does not say so."""
    about = "" if finding.subject is None or finding.subject in finding.title else f" ({finding.subject})"
    return f"{finding.title}{about}"


def remainder(diagnosis: Diagnosis) -> str:
    """``2 more findings; `` where not all are shown, else nothing."""
    more = len(diagnosis.findings) - SHOWN
    return f"{counted(more, 'more finding')}; " if more > 0 else ""
