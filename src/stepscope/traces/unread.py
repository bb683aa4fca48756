"""Why a trace without device events does not show what the device did.

Its categories are unknown, or the host's events are those of a job on a device: launches, operators and allocations
that only a device has, collectives of its library. Such a host's operators are not the job's time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from stepscope.core.words import counted
from stepscope.records.trace_quality import QualityFact
from stepscope.traces.events import Category, Events, TraceMeta
from stepscope.traces.passes import COMM_LAUNCHES

_LAUNCH = re.compile(r"launch|enqueue|submit|execute", re.IGNORECASE)


def unread_device(events: Events, meta: TraceMeta, *, cut: bool) -> Iterator[QualityFact]:
    """Yield why a trace without device events does not show what the device did; nothing where there is no device.

    cut: the file stops inside its events; the host's come first.
    """
    if meta.unread:
        names = tuple(f"{category} ({counted(n, 'event')})" for category, n in meta.unread.items())
        yield QualityFact(kind="unknown-device", count=sum(meta.unread.values()), names=names)
        return
    for signs in (_launch_signs, _operator_signs, _allocation_signs, _backend_signs):
        count, names = signs(events, meta)
        if count and names:
            yield QualityFact(kind="cut-before" if cut else "not-recorded", count=count, names=names)
            return
    if cut and meta.device_names:
        yield QualityFact(kind="cut-before", names=meta.device_names[:3])
        return
    ranges = events.of(Category.USER_ANNOTATION)
    if ranges.any() and not events.of(Category.CPU_OP, Category.RUNTIME, Category.DRIVER).any():
        count, names = _event_signs(events, ranges)
        yield QualityFact(kind="only-annotations", count=count, names=names)


_ON_DEVICE = re.compile(
    r"aten::\w*(cudnn|miopen|flash_attention_(forward|backward)|efficient_attention_(forward|backward)|cutlass|cuda)"
    r"|aten::_scaled_dot_product_(flash|efficient|cudnn)_attention(?!\w*_for_cpu)|^(nccl|xccl|rccl|hccl|mccl):|flash_attn::|xformers::"
    r"|^aten::(_?pin_memory|record_stream)$|^triton_(poi|red|per|tem|for|mm|bmm|flex)_"
)
"""Operators that exist on devices alone."""

_DEVICE_BACKENDS = frozenset({"nccl", "rccl", "xccl", "ccl", "hccl", "mccl", "cncl", "eccl"})


Signs = tuple[int, tuple[str, ...]]


def _launch_signs(events: Events, _: TraceMeta) -> Signs:
    return _event_signs(events, events.of(Category.RUNTIME, Category.DRIVER) & events.named(_LAUNCH.search))


def _operator_signs(events: Events, _: TraceMeta) -> Signs:
    host = events.of(Category.CPU_OP, Category.USER_ANNOTATION)
    return _event_signs(events, host & events.named(_ON_DEVICE.search))


def _allocation_signs(events: Events, _: TraceMeta) -> Signs:
    count = 0 if events.memory is None else int((events.memory.device_type > 0).sum())
    return count, ("allocations of its memory",)


def _backend_signs(events: Events, meta: TraceMeta) -> Signs:
    backends = {meta.backend or "", *(group.backend for group in meta.groups)}
    words = {word for backend in backends for word in re.split(r"[^a-z]+", backend.lower())}
    calls = events.of(Category.CPU_OP) & events.begins(COMM_LAUNCHES)
    return int(calls.sum()), tuple(f"collectives of {word}" for word in sorted(words & _DEVICE_BACKENDS))


def _event_signs(events: Events, chosen: NDArray[np.bool_]) -> Signs:
    names = dict.fromkeys(events.name_of(int(i)) for i in np.flatnonzero(chosen)[:1000])
    return int(chosen.sum()), tuple(names)[:3]
