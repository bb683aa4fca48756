"""Devices whose work a trace holds or misses and that is not read: their host's operators are not the job's time."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

import numpy as np

from stepscope.core.words import counted
from stepscope.traces.events import Category, Events, TraceMeta

_DEVICE = re.compile(
    r"mtia|hpu|npu|tpu|xpu|gcu|mlu|musa|privateuse|ascend|neuron|glow|ccp|gpu|cuda|hip|device|hardware|accelerator|stream",
    re.IGNORECASE,
)
"""In a category's or a process's name: MTIA, Gaudi (hpu), Ascend (npu), XPU, custom backends (privateuse1), and the like."""

_KNOWN = frozenset({"Trace", "cpu_instant_event", "external_correlation", "fwdbwd", "ac2g", "async_cpu_to_gpu"})
"""Categories of the profiler itself."""

_LAUNCH = re.compile(r"launch.?(cooperative.?)?kernel|enqueueKernel|cuLaunch", re.IGNORECASE)


def unread_categories(foreign: Mapping[tuple[str, str], int], labels: Mapping[str, str]) -> dict[str, int]:
    """Spans by category, of unknown categories that a device's name or its process's is in.

    ``foreign``: spans by (category, process id); ``labels``: what processes are called.
    """
    found: Counter[str] = Counter()
    for (category, process), spans in foreign.items():
        label = labels.get(process, "")
        if category not in _KNOWN and (_DEVICE.search(category) or _DEVICE.search(label)):
            found[category or f"no category, process {label!r}"] += spans
    return dict(found.most_common())


def unread_device(events: Events, meta: TraceMeta) -> str | None:
    """Why this trace does not show what the device did; None where it does, or where there is none."""
    if events.is_device.any():
        return None
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
