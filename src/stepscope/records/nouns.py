"""Nouns that several records share: a measured figure, the end of a run, the kind of scaling."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from stepscope.core.dataclass import dataclass

Status = Literal["ok", "oom", "host_oom", "timeout", "error", "killed", "unsupported", "skipped", "interrupted"]
Scaling = Literal["strong", "weak"]


EXPOSED_COMM, EXPOSED_COMM_SHORT = "exposed communication", "exposed comm"
"""A step's communication under no computation: its name in every title, legend and sentence; in a narrow column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A figure and its 95% interval in base units; low, high None: too few samples, or the source gives none.

    n: replicates behind it (steps, epochs, rounds); None: not told.
    """

    value: float
    low: float | None = None
    high: float | None = None
    n: int | None = None

    def times(self, factor: float) -> Measured:
        low, high = (None if end is None else end * factor for end in (self.low, self.high))
        return replace(self, value=self.value * factor, low=low, high=high)

    def below(self, other: Measured) -> bool | None:
        """Whether both intervals leave no doubt that this figure is the smaller; None: one of them is unknown."""
        return None if self.high is None or other.low is None else self.high < other.low
