"""Experiments, ONE FILE EACH: a preset's matrix, what to expect of it, and what was measured beside it: one figure each,
and whether the two agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from stepscope.core.dataclass import record
from stepscope.core.registry import Registry
from stepscope.core.words import grouped
from stepscope.records.nouns import Measured

if TYPE_CHECKING:
    from stepscope.results.comm_costs import CommCosts
    from stepscope.results.evidence import CellEvidence, Evidence

Unit = Literal["time", "bytes", "share", "flops", "whole"]
Verdict = Literal["agrees", "differs", "undecided"]

TOO_WIDE = 0.5
"""Half an interval, as a share of the larger figure, from which on it would agree with nearly anything."""


LEAST_ERROR = 0.10
"""Repeated sweeps of one quiet machine differ by as much."""


@record
class Expectation:
    """One quantity of one cell. Figures in base units (``time``: ns).

    expected: by the product's own model, with an interval where the model rests on measurements; None: see ``missing``.
    measured: with its 95% interval. exact: counted, so that it needs no interval. tolerance: what the model leaves out, as a
    share of the expected figure. model: how the expected figure is made. hint: what a difference means, in a sentence.
    missing: why one of the two figures is not there. detail: what more heads the figures of the subject.
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
    detail: str = ""

    @property
    def verdict(self) -> Verdict:
        return "undecided" if self._obstacle else "agrees" if self._near else "differs"

    @property
    def reason(self) -> str:
        """Why it is undecided, or what the difference means; empty where the two agree."""
        if obstacle := self._obstacle:
            return obstacle
        return "" if self._near else self.hint

    @property
    def _obstacle(self) -> str:
        """Why the figure cannot be judged; empty: it can."""
        if self.expected is None or self.measured is None:
            return self.missing or "not measured"
        if self.exact:
            return ""
        if self.measured.low is None or self.measured.high is None:
            return "too few steps for an interval"
        half = (self.measured.high - self.measured.low) / 2
        if half > TOO_WIDE * max(abs(self.expected.value), abs(self.measured.value)):
            return "too noisy: half the interval is more than half of either figure; measure more steps, on a quiet machine"
        return ""

    @property
    def _near(self) -> bool:
        if self.expected is None or self.measured is None:
            return False
        slack = self.tolerance * abs(self.expected.value)
        low, high = (_interval_end(self.expected, side) + sign * slack for side, sign in (("low", -1), ("high", 1)))
        return low <= _interval_end(self.measured, "high") and _interval_end(self.measured, "low") <= high


def _interval_end(figure: Measured, side: str) -> float:
    end = getattr(figure, side)
    return figure.value if end is None else float(end)


@record
class Experiment:
    """An experiment of a preset. judge: makes the checks that the evidence allows. matrix: the preset of the same name as
    YAML, with the sweep (``comm``) that the expectation rests on; None: ``presets/`` has it.
    """

    judge: Callable[[Evidence], tuple[Expectation, ...]]
    matrix: str | None = None


def difference(one: Measured, other: Measured) -> Measured:
    """``one`` - ``other``, measured independently: the half-widths of the intervals add as squares do."""
    value = one.value - other.value
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return Measured(value=value)
    below = math.hypot(one.value - one.low, other.high - other.value)
    above = math.hypot(one.high - one.value, other.value - other.low)
    return Measured(value=value, low=value - below, high=value + above)


def model_error(costs: CommCosts | None, world_size: int) -> float:
    """What a prediction from these collectives may be off by: their fits' error on sizes left out, at least 10%."""
    fits = () if costs is None else costs.calibration.fits
    errors = [fit.curve.cross_validated_error or 0.0 for fit in fits if fit.world_size == world_size]
    return max([LEAST_ERROR, *errors])


def finished(evidence: Evidence) -> tuple[CellEvidence, ...]:
    """Cells with a step time."""
    return tuple(cell for cell in evidence.cells if cell.run.status == "ok" and cell.run.step_ns is not None)


REGISTRY: Registry[Experiment] = Registry("stepscope.results.experiments", "EXPERIMENT", "experiment")


def experiment_names() -> tuple[str, ...]:
    """Names as presets have them: ``alpha-beta`` for ``alpha_beta.py``."""
    return tuple(name.replace("_", "-") for name in REGISTRY.names())


def experiment_of(preset: str) -> Experiment | None:
    """The experiment of this name; None where a matrix asks nothing."""
    return REGISTRY.load(preset.replace("-", "_")) if preset in experiment_names() else None


def checks_of(evidence: Evidence) -> tuple[Expectation, ...]:
    """What the experiments among the run folders expected and found of their own cells, in the order of their figures."""
    of_name: dict[str, set[str]] = {}
    for run in evidence.records:
        if run.kind == "bench":
            of_name.setdefault(run.name, set()).update(run.cells, run.earlier_cells)
    checks: list[Expectation] = []
    for name, ids in of_name.items():
        if (experiment := experiment_of(name)) is not None:
            folders = grouped((cell for cell in evidence.cells if cell.cell_id in ids), lambda cell: cell.run.source)
            checks += [
                check
                for folder in folders.values()
                for check in experiment.judge(replace(evidence, cells=tuple(folder)))
            ]
    return tuple(checks)
