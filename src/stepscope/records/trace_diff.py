"""Two traces, or two sets of steps, side by side."""

from __future__ import annotations

from stepscope.core.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeries:
    """One quantity of one rank in every step. calls: in all steps together; None for a part of the budget."""

    kind: str  # part | kernel | operator
    name: str
    calls: int | None
    per_step_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkProfile:
    """What a diff needs of one rank: every part of the budget, kernel and operator by step.

    Without step marks the whole window counts as one step (``marked`` False). kernels and operators beyond the limit are
    together in one series named ``OTHERS``.
    """

    rank: int
    marked: bool
    source: str
    steps: tuple[int, ...]
    series: tuple[StepSeries, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffRow:
    """One quantity before and after, per step (median over the steps). ratio: after / before; None from 0.

    p_value: permutation test over the steps, corrected for all rows of its kind, shown or not; of the step itself, the
    verdict's. None with fewer than 4 steps on a side, and for a row that only one side has.
    presence: both | new | gone | unlisted (the other side may have it among its ``all others``).
    """

    kind: str
    name: str
    presence: str
    before_ns: float
    after_ns: float
    delta_ns: float
    ratio: float | None
    before_calls: float | None  # per step
    after_calls: float | None
    p_value: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceDiff:
    """after against before. verdict: faster | slower | not clear | no significant difference | not tested.

    ratio: step time after / before, its 95% interval where both have at least 4 steps. why: what the verdict rests on.
    """

    rank_before: int
    rank_after: int
    verdict: str
    why: str
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    p_value: float | None
    steps_before: int
    steps_after: int
    parts: tuple[DiffRow, ...]
    kernels: tuple[DiffRow, ...]
    operators: tuple[DiffRow, ...]
    left_out_rows: int
