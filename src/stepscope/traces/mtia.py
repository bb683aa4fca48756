"""MTIA's profiler (``mtia_ccp_events``): which of a device's spans compute, which copy, and which only wait for others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from stepscope.traces.envelope import MTIA_OTHERS
from stepscope.traces.events import NONE, Category, Events

_COPY = "dma_request"


def waits_left_out(events: Events, labels: Mapping[str, str]) -> Events:
    """Return the events with copies as copies, which run beside the kernels although they bear a kernel's stream, and
    without what waits. Calls in the device's process are its queue's account of calls that the host made."""
    of_device = [labels.get(process, "").startswith("MTIA") for process, _ in events.threads]
    here = np.array(of_device, dtype=bool)[events.thread]
    others = here & (events.category == Category.KERNEL) & events.named(MTIA_OTHERS.__contains__)
    copies = others & events.named(_COPY.__eq__)
    category, stream = events.category.copy(), events.stream.copy()
    category[others | (here & (events.category == Category.RUNTIME))] = Category.OTHER
    category[copies] = Category.MEMCPY
    stream[copies] = NONE
    return replace(events, category=category, stream=stream)
