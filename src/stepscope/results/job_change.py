"""The step from which on a job runs at another level: which, when, by how much, whose own time changed, and in what part."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from stepscope.core.words import grouped
from stepscope.records.finding import JobChange
from stepscope.records.parts import LEAVES
from stepscope.results.diary import JobSteps, parts_of
from stepscope.stats.lasting_change import LEAST_STEPS, lasting_change
from stepscope.stats.order import level_change
from stepscope.store.diary import RankDiary

MOSTLY = 0.5
"""Share of the step's change by which a rank's own time, or a part, changes at least to be named."""


@lru_cache(maxsize=2)
def job_change(steps: JobSteps) -> JobChange | None:
    """Return the change of a job's step time; None where the level stays, changes gradually, or comes back
    (``lasting_change``; of a short job ``level_change``), or a window of profiled steps moved it."""
    change = lasting_change(steps.step_ns) if steps.steps >= LEAST_STEPS else level_change(steps.step_ns)
    if change is None:
        return None
    number = int(steps.numbers[change.at])
    if steps.window is not None and steps.window.holds(number):
        return None
    grew = change.after - change.before
    own = _median_moves_ns(steps.own_ns, change.at) / grew
    moved = [at for at, part in enumerate(own) if part >= MOSTLY]
    ranks = () if len(moved) == steps.ranks else tuple(steps.rank_numbers[at] for at in moved)
    places = moved or list(range(steps.ranks))
    by_part = {
        name: float(_median_moves_ns(part[places], change.at).mean()) / grew
        for name, part in parts_of(steps).items()
        if name != "waiting" or not moved
    }
    most = max(LEAVES, key=lambda name: by_part.get(name, 0.0))
    return JobChange(
        step=number,
        unix_s=_step_begin_s(steps.diaries[0], number),
        ratio=change.ratio,
        ranks=ranks,
        all_ranks=len(moved) == steps.ranks > 1,
        hosts=_slower_hosts(steps, set(ranks)),
        part=most if by_part[most] >= MOSTLY else None,
    )


def _median_moves_ns(times: np.ndarray[tuple[int, ...], np.dtype[np.float64]], at: int) -> np.ndarray:
    """Return medians from column ``at`` on less those before [ranks], of times [ranks, steps]."""
    return np.asarray(np.median(times[:, at:], axis=1) - np.median(times[:, :at], axis=1))


def _step_begin_s(diary: RankDiary, number: int) -> float | None:
    """Return the Unix seconds at which a step begins, from the samples around it, else from the steps before it."""
    step, at = diary.samples["step"], diary.samples["unix_s"]
    if step.size and step[0] <= number <= step[-1]:
        return float(np.interp(number, step, at))
    if diary.first:
        return None
    return diary.header.start_unix_ns / 1e9 + float(np.nansum(diary.whole_ns[: number - 1])) / 1e9


def _slower_hosts(steps: JobSteps, ranks: set[int]) -> tuple[str, ...]:
    by_host = grouped(steps.diaries, lambda diary: diary.header.host)
    whole = tuple(host for host, here in by_host.items() if ranks.issuperset(diary.rank for diary in here))
    covered = {diary.rank for host in whole for diary in by_host[host]}
    return whole if len(by_host) > 1 and covered == ranks else ()
