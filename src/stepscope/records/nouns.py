"""Nouns that several records share: a measured figure, the end of a run, the kind of scaling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from stepscope.core.dataclass import record

if TYPE_CHECKING:
    from typing import Self

Status = Literal["ok", "oom", "host_oom", "timeout", "error", "killed", "unsupported", "skipped", "interrupted"]
Scaling = Literal["strong", "weak"]

EXPOSED_COMM, EXPOSED_COMM_SHORT = "exposed communication", "exposed comm"
"""Names of a step's communication under no computation: in every title, legend and sentence; in a narrow column."""

MFU_CONVENTION = "model FLOP (3 x forward, 2 a multiply-add) / (step time x ranks x dense peak of the type in use)"
"""What MFU is, in the note of every table that shows it."""

Ends = tuple[float, float]
"""Low and high end of an interval."""


@record
class Estimate:
    """A number and the ends of its interval, in one unit: 95% of what was measured, 80% of what was predicted.

    low, high None: too few samples, or the source gives none.
    """

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def half_width(self) -> float | None:
        """The wider half of the interval; None without one."""
        if self.low is None or self.high is None:
            return None
        return max(self.high - self.value, self.value - self.low)

    def mapped(self, change: Callable[[float], float]) -> Self:
        """Apply ``change``, which is monotone, to the number and to the ends of its interval."""
        if self.low is None or self.high is None:
            return replace(self, value=change(self.value), low=None, high=None)
        low, high = sorted((change(self.low), change(self.high)))
        return replace(self, value=change(self.value), low=low, high=high)

    def times(self, factor: float) -> Self:
        return self.mapped(lambda value: value * factor)

    def below(self, other: Estimate) -> bool | None:
        """Return whether the intervals leave no doubt that this figure is smaller; None: one of them is unknown."""
        return None if self.high is None or other.low is None else self.high < other.low

    def over(self, other: Estimate) -> Estimate:
        """Return this / ``other``; where both have an interval, with the widest that the ratio can be."""
        ratio = self.value / other.value
        if self.low is None or self.high is None or other.low is None or other.high is None or other.low <= 0:
            return Estimate(value=ratio)
        return Estimate(value=ratio, low=self.low / other.high, high=self.high / other.low)

    def leaves_out(self, value: float) -> bool:
        """Whether there is an interval, and ``value`` is outside of it."""
        return self.low is not None and self.high is not None and not self.low <= value <= self.high


@record
class Measured(Estimate):
    """A figure in base units. n: replicates behind it (steps, epochs, rounds); None: not told."""

    n: int | None = None

    @classmethod
    def between(cls, value: float, ends: Ends | None, *, n: int | None = None) -> Measured:
        """Make a figure of ``value`` and its interval, where there is one."""
        low, high = ends or (None, None)
        return cls(value=value, low=low, high=high, n=n)
