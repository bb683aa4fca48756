"""Devices whose work a trace holds or misses and that is not read: their host's operators are not the job's time."""

from __future__ import annotations

import re

import numpy as np

from stepscope.core.words import counted
from stepscope.traces.events import Category, Events, TraceMeta

_LAUNCH = re.compile(r"launch|enqueue|submit|execute", re.IGNORECASE)


def unread_device(events: Events, meta: TraceMeta) -> str | None:
    """Why a trace without device events does not show what the device did; None where there is no device."""
    if meta.unread:
        listed = ", ".join(f"{category} ({counted(n, 'event')})" for category, n in list(meta.unread.items())[:3])
        return f"the device's work was not read: stepscope does not know its event categories: {listed}"
    runtime = np.isin(events.category, (Category.RUNTIME, Category.DRIVER))
    launches = int((runtime & events.named(_LAUNCH.search)).sum())
    if launches:
        return (
            f"the device's work was not recorded: {counted(launches, 'launch')} and no kernel "
            "(profile with ProfilerActivity.CUDA or .XPU; the driver may refuse to trace: see the profiler's own warnings)"
        )
    return None
