"""Running a plan so that its results are on disk whatever ends it: derived files follow the cells, and a stop signal."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from stepscope.core.errors import Interrupted, StepscopeError
from stepscope.core.signals import stop_signals_raise
from stepscope.matrix.cell_kind import RunRequest
from stepscope.matrix.events import CellEnded, Event
from stepscope.matrix.runner import OnEvent, run_matrix

T = TypeVar("T")

_SHARE = 20
"""Of the time, one part in this many may go into renewing derived files: many cells make them long."""


def run_to_the_end(
    request: RunRequest, on_event: OnEvent, *, renew: Callable[[], object], finish: Callable[[], T]
) -> tuple[T, Interrupted | None]:
    """Run ``request``; what ``finish`` returns, and what stopped the run, for the caller to raise again.

    renew: writes what follows from the run folder; called as cells end. finish: writes everything; called once the run
    is over, and again if a stop signal comes meanwhile: the launcher of a joined world sends one when a rank fails.
    """
    renewed_until = 0.0

    def heard(event: Event) -> None:
        nonlocal renewed_until
        on_event(event)
        begun = time.monotonic()
        if isinstance(event, CellEnded) and begun >= renewed_until:
            with suppress(StepscopeError):  # ``finish`` says it, when the cells have run
                renew()
            ended = time.monotonic()
            renewed_until = ended + _SHARE * (ended - begun)

    try:
        with stop_signals_raise("interrupted; what was measured is saved"):
            run_matrix(request, heard)
            return finish(), None
    except Interrupted as stop:
        return finish(), stop
