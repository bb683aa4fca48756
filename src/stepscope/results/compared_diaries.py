"""All steps of one profiled job against all steps of another: step time and its parts, over blocks of steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import dataclass
from stepscope.core.errors import Unavailable
from stepscope.core.words import counted
from stepscope.records.comparison import ComparedFigure, Replicates
from stepscope.records.nouns import Measured
from stepscope.results.compared_figure import figure
from stepscope.results.diary import job_steps
from stepscope.stats.compare import MIN_REPLICATES, Change, block_medians, change, step_blocks
from stepscope.store.diary import RankDiary

Numbers = NDArray[np.float64]
Of = Callable[..., Any]
"""np.median or np.mean."""

BETWEEN_RUNS = 0.009
"""Standard deviation of log(step) between runs of one command on one machine that was meant to have nothing else to do."""

OF_STEP = 0.01
"""What a part of the step may differ by between two such runs, as a share of the step: parts take time from each other."""

DELAY_FACTOR, USUAL_DELAY = 1.5, 0.01
"""Without processor for the share c of the time, a step takes 1 / (1 - c) times as long; beyond the usual share, that log
times the first is what the step may differ by between two runs. 13 runs beside other work (c 0.03 to 0.86, steps up to 9
times as long as alone) came out as different from each other in 6 of 36 pairs with half the log; the factor was chosen on
these runs."""

MOST_DOUBT = 0.3
"""Of what two runs of one command differ by (of log): where it is more nothing could be told, and nothing is tested."""

BUSY = 0.03
"""From this share of the time without processor on it is said."""

MOST_LOOKED_AT = 2000
"""Values in which the dependence of steps is looked for: of more steps, blocks of them."""

PARTS = ("data", "forward", "backward", "optimizer", "comm", "outside")
STEP_METRIC = "diary_step_ns"
DIARY_METRICS = (STEP_METRIC, *(f"diary_{part}_ns" for part in PARTS))
"""Of all timed steps: the step of the slowest rank without what is outside of it; its parts, mean of the ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedSteps:
    """The timed steps of a job that all its ranks have, warm-up left out. Times in ns.

    step: [steps] of each step's slowest rank, without what is outside; by_rank: of each. parts: [steps] mean of the
    ranks, those that were seen.
    outside: mean of all steps after the first. contended: largest share of a rank's time without processor.
    """

    step: Numbers
    by_rank: Mapping[int, Numbers]
    parts: Mapping[str, Numbers]
    outside: float | None
    ranks: int
    contended: float


def timed_steps(diaries: Sequence[RankDiary]) -> TimedSteps | Unavailable:
    """Those of :func:`stepscope.results.diary.job_steps`."""
    found = job_steps(diaries)
    if found is None:
        return Unavailable("no step diary")
    timed = np.logical_and.reduce([diary.timed[found.numbers - 1] for diary in found.diaries])
    if not timed.all():
        return Unavailable(f"none of {counted(found.all_steps, 'step')} is timed on every rank")
    parts = {
        part: np.nan_to_num(values).mean(axis=0)
        for part, values in found.parts_ns.items()
        if part in PARTS and np.isfinite(values).mean() > 0.5
    }
    outside = [np.nan_to_num(d.columns["outside_ns"][1 : found.all_steps]) for d in found.diaries]
    return TimedSteps(
        step=found.step_ns,
        by_rank={diary.rank: found.whole_ns[at] for at, diary in enumerate(found.diaries)},
        parts=parts,
        outside=float(np.mean(outside)) if found.all_steps > 1 else None,
        ranks=found.ranks,
        contended=float(np.max(np.nan_to_num(found.delay_ns).sum(axis=1) / found.whole_ns.sum(axis=1))),
    )


def between_runs(*sides: TimedSteps) -> float:
    """Standard deviation of log(ratio) of two runs of one command under these conditions."""
    contended = min(0.99, max(side.contended for side in sides))
    return math.hypot(math.sqrt(2) * BETWEEN_RUNS, DELAY_FACTOR * max(0.0, -math.log1p(-contended) - USUAL_DELAY))


def step_change(before: TimedSteps, after: TimedSteps, ranks: tuple[int, int]) -> tuple[Change, str] | None:
    """A rank's step after against before, and what a replicate is; None for ranks without a diary.

    ranks: that of before, and that of after.
    """
    first, second = before.by_rank.get(ranks[0]), after.by_rank.get(ranks[1])
    if first is None or second is None:
        return None
    a, b = _blocks(first, np.median), _blocks(second, np.median)
    found = change(a.values, b.values, between=between_runs(before, after))
    return None if found is None else (found, a.kind)


def diary_figures(before: TimedSteps, after: TimedSteps, *, side: str) -> Iterable[ComparedFigure]:
    """The step, then its parts: a part differs where it does so beyond 1% of the step, all of them tested at once."""
    between = between_runs(before, after)
    what = f"all steps: {before.step.size:,} against {after.step.size:,}"
    yield _figure(what, STEP_METRIC, side, before.step, after.step, between=between, of=np.median)
    shared = [part for part in PARTS[:-1] if part in before.parts and part in after.parts]
    for part in shared:
        a, b = before.parts[part], after.parts[part]
        typical = max(float(a.mean()), float(b.mean()))
        if min(float(a.mean()), float(b.mean())) <= 0:
            continue
        share = typical / max(float(np.median(before.step)), float(np.median(after.step)))
        doubt = math.hypot(between, OF_STEP) / share
        yield _figure(what, f"diary_{part}_ns", side, a, b, between=doubt, of=np.mean, tests=len(shared))
    if before.outside and after.outside:
        first, second = (Measured(value=mean) for mean in (before.outside, after.outside))
        yield figure(
            what=what, metric="diary_outside_ns", side=side, higher_is_better=False, first=first, second=second,
            replicates=None,
        )  # fmt: skip


def _figure(
    what: str, metric: str, side: str, before: Numbers, after: Numbers, *, between: float, of: Of, tests: int = 1
) -> ComparedFigure:
    first, second = (Measured(value=float(of(values)), n=values.size) for values in (before, after))
    told = metric == STEP_METRIC or between <= MOST_DOUBT
    return figure(
        what=what, metric=metric, side=side, higher_is_better=False, first=first, second=second,
        replicates=(_blocks(before, of), _blocks(after, of)) if told else None, between=between, tests=tests,
    )  # fmt: skip


def _blocks(series: Numbers, of: Of) -> Replicates:
    """Medians or means of consecutive steps; few steps make blocks so short that a side still has the fewest replicates."""
    coarse = -(-series.size // MOST_LOOKED_AT)
    length = min(coarse * step_blocks(block_medians(series, coarse)), max(1, series.size // MIN_REPLICATES))
    kept = series[: len(series) // length * length].reshape(-1, length)
    return Replicates(
        kind="step" if length == 1 else f"block of {length} steps", values=tuple(of(kept, axis=1).tolist())
    )
