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
"""Of what the step changed by: what a rank's own time, or a part, changes by at least to be named."""


@lru_cache(maxsize=2)
def job_change(steps: JobSteps) -> JobChange | None:
    """None: the level stays, changes gradually, or comes back (``lasting_change``; of a short job ``level_change``), or a
    window of profiled steps moved it."""
    found = lasting_change(steps.step_ns) if steps.steps >= LEAST_STEPS else level_change(steps.step_ns)
    if found is None:
        return None
    number = int(steps.numbers[found.at])
    if steps.window is not None and steps.window.holds(number):
        return None
    grew = found.after - found.before
    own = _moved(steps.own_ns, found.at) / grew
    moved = [at for at, part in enumerate(own) if part >= MOSTLY]
    ranks = () if len(moved) == steps.ranks else tuple(steps.diaries[at].rank for at in moved)
    mine = moved or list(range(steps.ranks))
    by_part = {
        name: float(_moved(part[mine], found.at).mean()) / grew
        for name, part in parts_of(steps).items()
        if name != "waiting" or not moved
    }
    most = max(LEAVES, key=lambda name: by_part.get(name, 0.0))
    return JobChange(
        step=number,
        unix_s=_when(steps.diaries[0], number),
        ratio=found.ratio,
        ranks=ranks,
        all_ranks=len(moved) == steps.ranks > 1,
        hosts=_hosts(steps, set(ranks)),
        part=most if by_part[most] >= MOSTLY else None,
    )


def _moved(times: np.ndarray[tuple[int, ...], np.dtype[np.float64]], at: int) -> np.ndarray:
    """[ranks]: medians from column ``at`` on less those before; of [ranks, steps]."""
    return np.asarray(np.median(times[:, at:], axis=1) - np.median(times[:, :at], axis=1))


def _when(diary: RankDiary, number: int) -> float | None:
    """Unix seconds at which a step begins, from the samples around it, else from the steps before it."""
    step, at = diary.samples["step"], diary.samples["unix_s"]
    if step.size and step[0] <= number <= step[-1]:
        return float(np.interp(number, step, at))
    if diary.first:
        return None
    return diary.header.start_unix_ns / 1e9 + float(np.nansum(diary.whole_ns[: number - 1])) / 1e9


def _hosts(steps: JobSteps, ranks: set[int]) -> tuple[str, ...]:
    by_host = grouped(steps.diaries, lambda each: each.header.host)
    whole = tuple(host for host, here in by_host.items() if ranks.issuperset(each.rank for each in here))
    covered = {each.rank for host in whole for each in by_host[host]}
    return whole if len(by_host) > 1 and covered == ranks else ()
