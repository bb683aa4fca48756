"""One figure of one side against the same figure of another: ratio, interval, test, verdict."""

from __future__ import annotations

from typing import Literal

import numpy as np

from stepscope.records.comparison import ComparedFigure, ComparisonVerdict, Replicates
from stepscope.records.nouns import Measured
from stepscope.stats.compare import SIGNIFICANT, Change, change


def figure(
    *,
    what: str,
    metric: str,
    side: str,
    higher_is_better: bool,
    first: Measured,
    second: Measured,
    replicates: tuple[Replicates, Replicates] | None,
    paired: bool = False,
    between: float | None = None,
    tests: int = 1,
    label: str | None = None,
    unit: str | None = None,
) -> ComparedFigure:
    """Both figures and the second's ratio to the first. paired: replicates are rounds that took turns. between, tests: of
    :func:`stepscope.stats.compare.change`. label, unit: see the record.

    With replicates the figures are the medians over them, as the ratio is; without, the two as given.
    """
    found = (
        None
        if replicates is None
        else change(*(each.values for each in replicates), paired=paired, between=between, tests=tests)
    )
    if replicates is not None and found is not None:
        first, second = (Measured(value=float(np.median(r.values)), n=len(r.values)) for r in replicates)
    else:
        found = _untested(first, second)
    return ComparedFigure(
        what=what,
        metric=metric,
        side=side,
        higher_is_better=higher_is_better,
        first=first,
        second=second,
        ratio=found.ratio,
        low=found.low,
        high=found.high,
        p_value=found.p_value,
        untested=found.untested,
        replicate=None if replicates is None else replicates[0].kind,
        verdict=_verdict(found, higher_is_better=higher_is_better, wider=between is not None),
        label=label,
        unit=unit,
    )


def _untested(first: Measured, second: Measured) -> Change:
    """One figure a side; where both have an interval, the widest that the ratio can be."""
    ratio, why = second.value / first.value, "no replicates: one figure on each side"
    if first.low is None or first.high is None or second.low is None or second.high is None or first.low <= 0:
        return Change(ratio=ratio, untested=why)
    return Change(ratio=ratio, low=second.low / first.high, high=second.high / first.low, untested=why)


def _verdict(found: Change, *, higher_is_better: bool, wider: bool) -> ComparisonVerdict:
    """Different only where the test and the interval agree; without a test, where intervals do not overlap.

    wider: the interval holds what the test cannot know (what two runs differ by), and decides alone that there is nothing.
    """
    if found.low is None or found.high is None:
        return "not tested"
    significant = found.apart if found.p_value is None else found.p_value < SIGNIFICANT
    if found.apart != significant and not (wider and not found.apart):
        return "not clear"
    if not found.apart:
        return "no significant difference"
    return "better" if (found.ratio > 1.0) == higher_is_better else "worse"


def lacking(compared: ComparedFigure) -> Literal["test", "interval"] | None:
    """Which of the two keeps a tested figure from being different, where the other one says that it is; else None."""
    if compared.verdict in ("better", "worse") or compared.p_value is None or compared.low is None:
        return None
    if compared.low > 1.0 or (compared.high is not None and compared.high < 1.0):
        return "test"
    return "interval" if compared.p_value < SIGNIFICANT else None
