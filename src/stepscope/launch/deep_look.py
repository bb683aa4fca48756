"""The deep look of ``stepscope run``: a window of profiled steps that is asked for by itself, where a verdict names a rank,
a part of the step or a kind of step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from stepscope.launch.hang_watch import training_ends
from stepscope.launch.hooked_job import wake
from stepscope.launch.job_window import WindowState, WindowWait
from stepscope.records.finding import JobVerdict, VerdictKind
from stepscope.records.profile import WindowRequest
from stepscope.store.layout import ProfileLayout

Deep = Literal["auto", "on", "off"]

MOST_RANKS = 64
"""A larger job is not looked into without being asked to: a window makes every rank wait while its trace is written."""

AN_HOUR = 3
HOUR_S = 3600.0

PROFILED_RANKS = 8
"""One window profiles at most so many ranks: late ones and one that is not, or the first ones."""

MOST_STEPS = 34
"""A window that waits for a kind of step that comes every so often takes at most so many steps."""

_EXPLAINED: frozenset[VerdictKind] = frozenset(
    {
        "straggler",
        "uneven-work",
        "input-bound",
        "before-forward",
        "communication-bound",
        "pipeline-bubble",
        "optimizer-bound",
        "periodic-pause",
    }
)
"""Kinds of verdict that say which rank, part or step, and not why."""


class DeepLooks:
    """Windows that a running job was asked for. clock: seconds that only grow."""

    def __init__(self, layout: ProfileLayout, mode: Deep, clock: Callable[[], float] = time.monotonic) -> None:
        self._layout = layout
        self._mode = mode
        self._clock = clock
        self._asked_s: list[float] = []
        self._asked_about: set[object] = set()
        self._wait: WindowWait | None = None
        self._number = 0

    def consider(self, verdict: JobVerdict) -> WindowRequest | None:
        """Ask the job for a window where the verdict names what one explains and none was taken for it; return the
        request."""
        request = self._request(verdict)
        if request is None:
            return None
        self._number = wake(self._layout, request)
        self._wait = WindowWait(self._layout, self._number, request)
        self._asked_about |= _verdict_subjects(verdict)
        self._asked_s.append(self._clock())
        return request

    def look(self) -> tuple[int, WindowState] | None:
        """Return the number of a window that all its ranks have ended, and what is known of it; once for each window."""
        if self._wait is None or not self._wait.look():
            return None
        state, self._wait = self._wait.state, None
        return self._number, state

    def _request(self, verdict: JobVerdict) -> WindowRequest | None:
        """Return the window to ask for now; None: no reason, too many ranks, or too many windows of late."""
        world = verdict.world_size or verdict.ranks_seen
        lately = [at for at in self._asked_s if self._clock() - at < HOUR_S]
        if (
            self._mode == "off"
            or (self._mode == "auto" and world > MOST_RANKS)
            or self._wait is not None
            or len(lately) >= AN_HOUR
            or _verdict_subjects(verdict) <= self._asked_about
            or training_ends(self._layout)  # no step is left to profile
        ):
            return None
        period = verdict.costs[0].period if verdict.costs else None
        if period is not None and period + 2 > MOST_STEPS:
            return None
        return WindowRequest(
            steps="auto" if period is None else period + 2,
            wait="auto",
            warmup=1,
            fixed_step=None,
            collect=(),
            sampled=("shapes",),
            ranks=_ranks_to_profile(verdict, world),
        )


def _verdict_subjects(verdict: JobVerdict) -> set[object]:
    """Return what a window explains: the verdict, and a lasting change for the worse on some ranks."""
    named: set[object] = {(verdict.kind, verdict.ranks)} if verdict.kind in _EXPLAINED else set()
    return named | ({("change", verdict.slowed)} if verdict.slowed else set())


def _ranks_to_profile(verdict: JobVerdict, world: int) -> tuple[int, ...] | None:
    """Return the ranks that are late or became slower and the first one that is not, else the first ones; None stands for
    all."""
    if world <= 2:
        return None
    named = sorted({*verdict.ranks, *verdict.slowed})
    if not named or len(named) == world:
        return tuple(range(min(world, PROFILED_RANKS)))
    usual = next(rank for rank in range(world) if rank not in named)
    return tuple(sorted((*named[: PROFILED_RANKS - 1], usual)))
