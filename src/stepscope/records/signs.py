"""What the text of a job says of its end, or of what stands in its way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from stepscope.core.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """One statement of a log. kind: of ``store.signs``. source, line: where it stands. values: what it says, as printed.

    rank: global, as a launcher's prefix or the line itself has it; host, time: likewise; None: the text does not say. text:
    the line, without prefixes.
    """

    kind: str
    source: str
    line: int
    text: str
    rank: int | None = None
    host: str | None = None
    time: str | None = None
    values: Mapping[str, str] = field(default_factory=dict)
