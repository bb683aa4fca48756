"""When a window begins and how many steps it has: rank 0 decides before it, and every rank does the same.

Rank 0 writes ``window-N.json`` with ``begin`` and ``steps``, at least MARGIN_STEPS ahead where there are other ranks. A rank
that does not see the output folder cannot read it: it begins at the request's fixed step, and rank 0, to which the file of
such a rank is missing, begins there, too.
"""

import os
import sys
import time

from stepscope_hook.control import say
from stepscope_hook.window import WINDOW_S, Window, median

SETTLED = 4
SETTLED_SPREAD = 0.2
"""Step times have settled when the last four differ from their median by a fifth at most."""
SETTLE_AT_MOST = 20
LONG_STEP_NS = 1e9
"""Steps of this length are few: the window begins at once."""
LONG_FIRST_NS = 5e9
MARGIN_STEPS = 3
MARGIN_S = 1.0
"""So far ahead rank 0 puts a window, that every rank has seen it; a second where ranks are on several hosts."""
LATER_S = 2.5
"""The same for a window after the first, for which the diary's thread looks once a second."""
SEEN_AT = 2
"""After so many steps of rank 0 the file of a rank that sees the folder is there: it is written at that rank's first."""
LEAST_STEPS, MOST_STEPS = 8, 32
"""Least and most steps of a window with ``steps: auto``."""
PRECISE = 0.025
"""Standard error of the median step, as a share of it, at which more steps tell no more."""
PROFILED_TAKES = 1.3
"""How many times as long a step takes under the profiler."""


class Plan:
    """A window asked for. begin: number of finished steps at which it starts; None until rank 0 has chosen."""

    def __init__(self, request, begin=None):
        self.request = request
        self.begin = begin


class Plans:
    """The windows of one process. steps: the counter of its steps."""

    def __init__(self, steps):
        self.steps = steps
        self.control = steps.control
        self.began = time.monotonic()
        self.number = 1
        """Number of the next window."""
        self.window = None
        self.planned = None
        self.awaited = ""
        self.later = self.seen = False
        """Whether the diary's thread looks for the awaited file, and has found it: after the first window training does
        not touch the folder, which may be on another host and stand still."""
        self.on = True

    def await_next(self, request=None):
        """Await the next window. request: the first one, where the command line asked for it as it started the job."""
        self.planned = None
        self.later, self.seen = request is None, False
        if not self.control.shared:
            self.awaited = os.devnull + "/never"
            if request is not None:
                self.planned = Plan(with_steps(request, LEAST_STEPS), begin=fixed_step(request))
        elif self.steps.rank == 0:
            self.awaited = self.control.path("request-{}.json".format(self.number))
            self.planned = None if request is None else Plan(request)
        else:
            self.awaited = self.control.path("window-{}.json".format(self.number))

    def look(self):
        """Look for a request, on the diary's thread, each second."""
        if self.later and not self.seen:
            self.seen = os.access(self.awaited, os.F_OK)

    def step(self, count):
        """Count a step that has ended, the count-th. Returns the window whose files were worked on, or whose profiler; None:
        nothing to do."""
        if self.window is None and self.planned is None:
            if not (self.seen if self.later else os.access(self.awaited, os.F_OK)):
                return None
        number = self.number
        try:
            return number if self.advance(count) else None
        except Exception as error:  # the job goes on whatever happens here
            self.off("{}: {}".format(type(error).__name__, error))
            return number

    def advance(self, count):
        """Go on with the windows; return whether more was done than a step of the window counted."""
        if self.window is not None:
            before = self.window.sessions, self.window.rested
            if not self.window.step(count):
                return (self.window.sessions, self.window.rested) != before
            self.window = None
            self.next()
            return True
        if self.planned is None:
            document = self.control.read(os.path.basename(self.awaited))
            self.seen = False
            if document is None or (self.steps.rank != 0 and document.get("restart") != self.steps.restart):
                return True
            self.planned = Plan(document, begin=document.get("begin"))
        plan = self.planned
        if plan.begin is None:
            self.choose(plan, count)
        if plan.begin is not None and count >= plan.begin:
            self.begin(plan, count)
        return True

    def next(self):
        self.number += 1
        self.await_next()

    def choose(self, plan, count):
        """Choose on rank 0 the step at which every rank begins, and the number of steps."""
        request, world = plan.request, self.steps.world
        diary = self.steps.diary
        times = diary.times or ([diary.first_ns] if self.long_first(count) else [])
        if not self.ready(request, count, times):
            return
        fixed = fixed_step(request)
        ranks = [self.control.read("rank-{:05d}.json".format(rank)) for rank in range(world)]
        steps, bounded = steps_of(request, times)
        if None in ranks and fixed is not None and count <= fixed:
            if count < max(fixed - MARGIN_STEPS, SEEN_AT):
                return  # its file may come
            plan.begin = fixed
            steps, bounded = with_steps(request, LEAST_STEPS)["steps"], None
        else:
            wait = request["wait"]
            ahead = 0
            if world > 1:
                hosts = {rank["host"] for rank in ranks if rank is not None}
                step_s = max(median(times) / 1e9, 1e-6) if times else MARGIN_S
                margin_s = LATER_S if self.later else MARGIN_S if len(hosts) > 1 else 0
                ahead = MARGIN_STEPS + int(margin_s / step_s)
            plan.begin = max(count + ahead, wait if isinstance(wait, int) else 0)
        plan.request = dict(request, steps=steps, bounded=bounded, auto=request["steps"] == "auto")
        if is_long(times) and request["wait"] == "auto":
            plan.request["warmup"] = 0
        if is_long(times) and plan.begin != fixed:
            # What costs more is little of such a step, and further ones would take long.
            plan.request.update(collect=[*request["collect"], *request.get("sampled", ())], sampled=[])
        document = dict(plan.request, begin=plan.begin, restart=self.steps.restart)
        self.control.write("profile_window/1", "window-{}.json".format(self.number), document)

    def ready(self, request, count, times):
        """Return whether the window can be put now."""
        wait = request["wait"]
        if request.get("duration_s"):
            return time.monotonic() - self.began >= request["after_s"]
        if wait != "auto":
            return count >= wait - MARGIN_STEPS or request["fixed_step"] is None
        return settled(times) or is_long(times) or count >= SETTLE_AT_MOST

    def long_first(self, count):
        """Return whether the first step was so long that there may be only a few of them: not where it compiled."""
        counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
        compiled = counters is not None and bool(counters["stats"])
        return count == 1 and self.steps.diary.first_ns > LONG_FIRST_NS and not compiled

    def begin(self, plan, count):
        wanted = plan.request.get("ranks")
        if wanted is not None and self.steps.rank not in wanted:
            self.next()
            return
        self.window = Window(self, plan.request, late=count - plan.begin)
        if not self.window.start(count):
            self.window = None
            self.next()

    def off(self, reason):
        """Make no more windows; the job and its diary go on."""
        window, self.window = self.window, None
        if window is not None:
            window.abandon("the hook failed: " + reason)
        else:
            say("rank {}: no window: {}".format(self.steps.rank, reason))
        self.on = False

    def at_exit(self):
        window, self.window = self.window, None
        if window is not None:
            window.at_exit()


def fixed_step(request):
    """Return the step where ranks begin that do not see the folder: not before rank 0 can know of them."""
    step = request["fixed_step"]
    return None if step is None else max(step, SEEN_AT + MARGIN_STEPS)


def with_steps(request, steps):
    return dict(request, steps=steps) if request["steps"] == "auto" else request


def steps_of(request, times):
    """Return (number of steps, why they are fewer than would be needed or None). times: ns of steps without the profiler."""
    if request["steps"] != "auto":
        return request["steps"], None
    wanted = LEAST_STEPS
    if len(times) >= SETTLED:
        centre = median(times)
        spread = 1.4826 * median([abs(time_ns - centre) for time_ns in times]) / max(centre, 1)
        wanted = min(max(int((1.2533 * spread / PRECISE) ** 2) + 1, LEAST_STEPS), MOST_STEPS)
    if times:
        allowed = max(int(WINDOW_S * 1e9 / (PROFILED_TAKES * max(median(times), 1))), 1)
        if allowed < wanted:
            return allowed, "{:.0f} s hold {} steps".format(WINDOW_S, allowed)
    return wanted, None


def is_long(times):
    return len(times) > 0 and median(times) > LONG_STEP_NS


def settled(times):
    last = list(times)[-SETTLED:]
    if len(times) < SETTLED:
        return False
    centre = median(last)
    return all(abs(duration - centre) <= SETTLED_SPREAD * centre for duration in last)
