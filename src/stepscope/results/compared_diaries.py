"""All steps of one profiled job against all steps of another: step time and its parts, over blocks of steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import dataclass
from stepscope.core.errors import Unavailable
from stepscope.core.grouping import grouped
from stepscope.core.words import counted
from stepscope.records.comparison import ComparedFigure, Replicates
from stepscope.records.training import Measured
from stepscope.results.compared_figure import figure
from stepscope.stats.compare import MIN_REPLICATES, Change, block_medians, change, step_blocks
from stepscope.stats.warmup import MIN_WARMUP_STEPS, warmup_end
from stepscope.store.diary import RankDiary

Numbers = NDArray[np.float64]
Of = Callable[..., Any]
"""np.median or np.mean."""

BETWEEN_RUNS = 0.009
"""Standard deviation of log(step) between runs of one command on one machine with nothing else to do."""

OF_STEP = 0.01
"""What a part of the step may differ by between two such runs, as a share of the step: parts take time from each other."""

CONTENDED = 0.5
"""Of the share of the time in which training threads had no processor, what the step may differ by beside."""

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

    step: [steps] of the slowest rank, without what is outside; by_rank: of each. parts: [steps] mean of the ranks, those
    that were seen.
    outside: mean of all steps, timed or not, after the first. contended: largest share of a rank's time without processor.
    """

    step: Numbers
    by_rank: Mapping[int, Numbers]
    parts: Mapping[str, Numbers]
    outside: float | None
    ranks: int
    contended: float


def timed_steps(diaries: Sequence[RankDiary]) -> TimedSteps | Unavailable:
    """Of the processes that stepped last as each rank: those before were restarted."""
    last = [max(same, key=lambda d: d.header.start_unix_ns) for same in grouped(diaries, lambda d: d.rank).values()]
    if not last:
        return Unavailable("no step diary")
    steps = min(diary.steps for diary in last)
    timed = np.logical_and.reduce([diary.timed[:steps] for diary in last])
    outside = {d.rank: np.nan_to_num(d.columns["outside_ns"][:steps]) for d in last}
    own = {d.rank: d.whole_ns[:steps] - outside[d.rank] for d in last}
    timed &= np.logical_and.reduce([np.isfinite(values) & (values > 0) for values in own.values()])
    if not timed.any():
        return Unavailable(f"no timed step in {counted(steps, 'step')} of {counted(len(last), 'rank')}")
    slowest = max(own, key=lambda rank: float(np.median(own[rank][timed])))
    chosen = np.flatnonzero(timed)
    chosen = chosen[min(warmup_end(own[slowest][chosen]) or MIN_WARMUP_STEPS, chosen.size // 2) :]
    parts = {}
    for part in PARTS[:-1]:
        values = np.mean([diary.columns[f"{part}_ns"][:steps][chosen] for diary in last], axis=0)
        if np.isfinite(values).mean() > 0.5:
            parts[part] = np.nan_to_num(values)
    delays = [float(np.mean(known)) for d in last if (known := _known(d.delay[:steps][chosen])).size]
    seen = [values[1:] for values in outside.values() if values.size > 1]
    return TimedSteps(
        step=own[slowest][chosen],
        by_rank={rank: values[chosen] for rank, values in own.items()},
        parts=parts,
        outside=float(np.mean(seen)) if seen else None,
        ranks=len(last),
        contended=max(delays, default=0.0),
    )


def _known(values: Numbers) -> Numbers:
    return values[np.isfinite(values)]


def between_runs(*sides: TimedSteps) -> float:
    """Standard deviation of log(ratio) of two runs of one command under these conditions."""
    contended = max(side.contended for side in sides)
    return math.hypot(math.sqrt(2) * BETWEEN_RUNS, CONTENDED * contended)


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
    told = between <= MOST_DOUBT
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
