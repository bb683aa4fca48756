"""From device work to the host call that launched it, through the correlation id."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import dataclass
from stepscope.traces.activity import Activity
from stepscope.traces.classify import Work
from stepscope.traces.events import NONE, Category, Events

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """For every event of ``of`` (event indices): the index of its launch, NONE where none was recorded."""

    of: Ints
    launch: Ints

    @property
    def known(self) -> NDArray[np.bool_]:
        known: NDArray[np.bool_] = self.launch != NONE
        return known


def launches_of(events: Events, indices: Ints) -> Launches:
    """Match by correlation id with the runtime and driver calls; a driver call inside a runtime call gives way."""
    calls = events.where(Category.RUNTIME, Category.DRIVER)
    calls = calls[events.correlation[calls] != NONE]
    # Runtime calls first in each group of one id: a stable sort keeps them in front of their driver calls.
    calls = calls[np.argsort(events.category[calls], kind="stable")]
    calls = calls[np.argsort(events.correlation[calls], kind="stable")]
    ids = events.correlation[calls]
    wanted = events.correlation[indices]
    found = np.searchsorted(ids, wanted)
    safe = np.minimum(found, max(len(ids) - 1, 0))
    hit = (found < len(ids)) & (wanted != NONE)
    if len(ids):
        hit &= ids[safe] == wanted
        launch = np.where(hit, calls[safe], NONE)
    else:
        launch = np.full(len(indices), NONE, dtype=np.int64)
    return Launches(of=indices, launch=launch)


def computed_before(events: Events, activity: Activity, launches: Launches, times: Ints) -> Ints:
    """For each time of the host, when all computation launched before it has ended on the device; NONE: there is none."""
    chosen = launches.known & (activity.work == Work.COMPUTE)
    called, ends = events.ts_ns[launches.launch[chosen]], events.end_ns[launches.of[chosen]]
    if not len(called):
        return np.full(len(times), NONE, dtype=np.int64)
    order = np.argsort(called, kind="stable")
    place = np.searchsorted(called[order], times, side="left") - 1
    return np.where(place >= 0, np.maximum.accumulate(ends[order])[np.maximum(place, 0)], NONE)
