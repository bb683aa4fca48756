"""What a report leaves about itself in its folder."""

from __future__ import annotations

from collections.abc import Mapping

from stepscope.core.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFiles:
    """.stepscope-report.json: the files that `report` wrote.

    of: SHA-256 of the paths and selections of the results that they show; empty where a report was stopped.
    files: SHA-256 by name, so that a file that somebody has changed since is known to be theirs.
    """

    of: str
    files: Mapping[str, str]
