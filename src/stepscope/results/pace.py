"""Steps a second over the time of a job: of one rank, for ranks train in lock step, with all processes that were it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import dataclass

Numbers = NDArray[np.float64]

MOMENTS = 60
"""Stretches of equal time."""

STEPS_EACH = 4
"""Fewest steps of a stretch, on average: with fewer, where its borders fall decides their number."""

NOW = 20
"""Last steps, whose pace is that of now."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepRate:
    """How fast steps were made. begin_unix_ns, end_unix_ns: from the first step's begin to the last step's end. steps_per_s:
    [moments], of stretches of equal length, with all that happened between steps, and between processes. now: of the last
    steps.
    """

    begin_unix_ns: float
    end_unix_ns: float
    steps_per_s: Numbers
    now: float

    @property
    def seconds(self) -> float:
        """Seconds of one stretch."""
        return (self.end_unix_ns - self.begin_unix_ns) / 1e9 / self.steps_per_s.size

    @property
    def mean(self) -> float:
        return float(self.steps_per_s.mean())


def pace(processes: Sequence[tuple[int, Numbers]]) -> StepRate | None:
    """Return the rate of steps, from (begin on the wall clock in ns, ns of each step) of each process of one rank; None: no
    step took time."""
    stepped = [(begin, np.nan_to_num(steps)) for begin, steps in processes if steps.size]
    if not stepped or not (last := stepped[-1][1]).sum() > 0:
        return None
    ends = np.concatenate([begin + np.cumsum(steps) for begin, steps in stepped])
    begin, end = float(stepped[0][0]), float(ends.max())
    moments = int(np.clip(ends.size // STEPS_EACH, 1, MOMENTS))
    counts, _ = np.histogram(ends, bins=moments, range=(begin, end))
    recent = last[-NOW:]
    return StepRate(
        begin_unix_ns=begin,
        end_unix_ns=end,
        steps_per_s=np.asarray(counts / ((end - begin) / 1e9 / moments), dtype=np.float64),
        now=recent.size / (float(recent.sum()) / 1e9),
    )
