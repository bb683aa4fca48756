"""One figure of an experiment: expected, measured, and whether the two agree."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

from stepscope.core.dataclass import dataclass
from stepscope.core.units import format_percent
from stepscope.records.training import Measured

if TYPE_CHECKING:
    from stepscope.results.evidence import CellEvidence, Evidence

Unit = Literal["time", "bytes", "share", "flops", "whole"]
Verdict = Literal["agrees", "differs", "cannot be told"]

TOO_WIDE = 0.5
"""Half an interval, as a share of what is expected, from which on it would agree with nearly anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One quantity of one cell. Figures in base units (``time``: ns).

    expected: by the product's own model, with an interval where the model rests on measurements; None: see ``missing``.
    measured: with its 95% interval. exact: counted, so that it needs no interval. tolerance: what the model leaves out, as a
    share of the expected figure. model: how the expected figure is made. hint: what a difference means, in a sentence.
    missing: why one of the two figures is not there.
    """

    subject: str
    quantity: str
    unit: Unit
    expected: Measured | None
    measured: Measured | None
    model: str
    tolerance: float = 0.0
    exact: bool = False
    hint: str = ""
    missing: str = ""

    @property
    def verdict(self) -> Verdict:
        return "cannot be told" if self._obstacle else "agrees" if self._near else "differs"

    @property
    def reason(self) -> str:
        """Why it cannot be told, or what the difference means; empty where the two agree."""
        if obstacle := self._obstacle:
            return obstacle
        return "" if self._near else self.hint

    @property
    def _obstacle(self) -> str:
        if self.expected is None or self.measured is None:
            return self.missing or "not measured"
        if self.exact:
            return ""
        if self.measured.low is None or self.measured.high is None:
            return "too few steps for an interval"
        half, scale = (self.measured.high - self.measured.low) / 2, abs(self.expected.value)
        if half > TOO_WIDE * scale:
            times = f"±{format_percent(half / scale)} of what is expected" if scale else "and nothing is expected"
            return f"too noisy here: the interval is {times}; measure more steps, or on a quiet machine"
        return ""

    @property
    def _near(self) -> bool:
        if self.expected is None or self.measured is None:
            return False
        slack = self.tolerance * abs(self.expected.value)
        low, high = (_end(self.expected, side) + sign * slack for side, sign in (("low", -1), ("high", 1)))
        return low <= _end(self.measured, "high") and _end(self.measured, "low") <= high


def _end(figure: Measured, side: str) -> float:
    found = getattr(figure, side)
    return figure.value if found is None else float(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """judge: the checks that the evidence allows. matrix: the preset of the same name as YAML; None: ``presets/`` has it.

    sweep: options of ``stepscope comm`` that measure beside the matrix, into the run folder's ``comm``, what the expectation
    rests on; empty: nothing.
    """

    judge: Callable[[Evidence], tuple[Check, ...]]
    matrix: str | None = None
    sweep: Mapping[str, Any] = field(default_factory=dict)


def difference(one: Measured, other: Measured) -> Measured:
    """``one`` - ``other``, measured independently: the half-widths of the intervals add as squares do."""
    value = one.value - other.value
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return Measured(value=value)
    below = math.hypot(one.value - one.low, other.high - other.value)
    above = math.hypot(one.high - one.value, other.value - other.low)
    return Measured(value=value, low=value - below, high=value + above)


def mapped(figure: Measured | None, change: Callable[[float], float]) -> Measured | None:
    """``change`` (monotone) of a figure and of the ends of its interval."""
    if figure is None:
        return None
    value = change(figure.value)
    if figure.low is None or figure.high is None:
        return Measured(value=value)
    low, high = sorted((change(figure.low), change(figure.high)))
    return Measured(value=value, low=low, high=high)


def finished(evidence: Evidence) -> tuple[CellEvidence, ...]:
    """Cells with a step time."""
    return tuple(cell for cell in evidence.cells if cell.run.status == "ok" and cell.run.step_ns is not None)
