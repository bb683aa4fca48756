"""The launch of each event of a rank's device, launches without such an event, and what was launched before a time."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import record
from stepscope.stats.spans import holds, last_end
from stepscope.traces.activity import activity_of
from stepscope.traces.events import NONE, Category, Events, Ints, RankView, once
from stepscope.traces.kernel_names import Work
from stepscope.traces.nesting import find, launch_of


@record
class Launches:
    """For every event of ``of`` (event indices): the index of its launch, NONE where none was recorded."""

    of: Ints
    launch: Ints

    @property
    def linked(self) -> NDArray[np.bool_]:
        linked: NDArray[np.bool_] = self.launch != NONE
        return linked


@once
def launches_of(view: RankView) -> Launches:
    """Return the launches of what the rank did, in its order."""
    indices = activity_of(view).indices
    return Launches(of=indices, launch=launch_of(view.events, indices))


_LAUNCH = re.compile(r"(cuda|cu|hip|Hip|ur|ze|mtia|musa|acl)\w*Launch(?!HostFunc)")
_COPY = re.compile(r"(cuda|cu)Memcpy\w*Async")
"""Of CUDA every such call has its copy in a whole file; memsets and HIP's copies often have none."""
_CAPTURE_BEGINS, _CAPTURE_ENDS = (
    re.compile(r"(cuda|cu|hip)StreamBeginCapture"),
    re.compile(r"(cuda|cu|hip)StreamEndCapture"),
)


@record
class LostLaunches:
    """Calls that launch kernels (event indices, by start): all, those of which no kernel is in the file, and those of them
    that a stream capture took: they recorded a graph and ran nothing. behind: how many of the lost are behind the last call
    whose kernel is in the file. copies: calls that copy, and copies_lost those of which no copy is in the file."""

    calls: Ints
    lost: Ints
    captured: Ints
    behind: int
    copies: Ints
    copies_lost: Ints

    @property
    def unseen(self) -> Ints:
        """Calls whose work is not in the file, of any kind."""
        return np.concatenate([self.lost, self.copies_lost])


@once
def lost_launches(view: RankView) -> LostLaunches:
    """Find launches without kernels: CUPTI dropped them, a graph was captured, or the file was cut.

    Nothing is lost where no device event can be matched with any call: then links were not recorded at all. Copies that
    can be matched, in a file without a kernel, show that they were.
    """
    events = view.events
    linked = events.correlation != NONE
    calls = events.by_start(events.of(Category.RUNTIME, Category.DRIVER) & events.named(_LAUNCH.match) & linked)
    device = np.flatnonzero(events.is_device)
    made = find(events.correlation[device], events.correlation[calls]) != NONE
    if len(calls) and made.any():
        # A driver call inside the runtime call that launches for it has an id of its own in some versions.
        runtime = calls[made]
        within = events.spans(runtime)
        made |= holds(within, events.ts_ns[calls])
    lost = calls[~made] if made.any() or _copies_alone(events, device) else calls[:0]
    behind = int(np.argmax(made[::-1])) if made.any() else len(lost)
    copies = events.by_start(events.of(Category.RUNTIME, Category.DRIVER) & events.named(_COPY.match) & linked)
    copied = find(events.correlation[device], events.correlation[copies]) != NONE
    unseen = copies[~copied] if copied.any() else copies[:0]
    return LostLaunches(
        calls=calls,
        lost=lost,
        captured=lost[_in_capture(events, lost)],
        behind=behind,
        copies=copies,
        copies_lost=unseen[~_in_capture(events, unseen)],
    )


def _in_capture(events: Events, calls: Ints) -> NDArray[np.bool_]:
    """Return which of these calls a stream capture took."""
    begins = events.by_start(events.named(_CAPTURE_BEGINS.match))
    ends = events.by_start(events.named(_CAPTURE_ENDS.match))
    if not len(calls) or not len(begins) or not len(ends):
        return np.zeros(len(calls), dtype=bool)
    before = np.searchsorted(events.ts_ns[begins], events.ts_ns[calls], side="right")
    after = np.searchsorted(events.ts_ns[ends], events.ts_ns[calls], side="right")
    taken: NDArray[np.bool_] = before > after
    return taken


def _copies_alone(events: Events, device: Ints) -> bool:
    """Whether the file has no kernel, and a copy that bears the number of a call."""
    if not len(device) or (events.category == Category.KERNEL).any():
        return False
    calls = np.flatnonzero(events.of(Category.RUNTIME, Category.DRIVER) & (events.correlation != NONE))
    return bool((find(events.correlation[device], events.correlation[calls]) != NONE).any())


def computed_before(view: RankView, times: Ints) -> Ints:
    """Return for each time of the host when all computation launched before it has ended on the device; NONE without any."""
    events, launches = view.events, launches_of(view)
    chosen = launches.linked & (activity_of(view).work == Work.COMPUTE)
    called, ends = events.ts_ns[launches.launch[chosen]], events.end_ns[launches.of[chosen]]
    return last_end(called, ends, times)
