"""Ascend's ``trace_view.json`` (torch_npu, MindSpore, msprof): what its processes hold becomes launches, kernels and copies.

Its events bear no categories; the process says what they are. ``Overlap Analysis`` is made of the others, and is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stepscope.stats.spans import holds
from stepscope.traces.envelope import ASCEND
from stepscope.traces.events import NONE, Category, Codes, Events

_COMMUNICATION = re.compile(r"\b(Communication|HCCL|HCOM)\b", re.IGNORECASE)
_CANN = re.compile(r"\bCANN\b")

_WAITS = re.compile(
    r"(event|notify|label|stream|mem|value|ccu)?[ _]?(wait|record|reset|switch)([ _](v\d|value|sqe))?$|notify[ _]|event[ _]"
    r"|(mem_)?(wait|write)_value|place_?holder|stars|profiler?_?(trace|enable|disable)|model_(exec|maint)|maintenance|nop$"
    r"|capture_|flip|barrier$",
    re.IGNORECASE,
)
"""Tasks of a stream that only wait, or set what another one waits for."""
_COPIES = re.compile(r"(memcpy|sdma|pcie_dma|memset)|rdma|inter_?\w*processor|reduce_?(inline|tbe)", re.IGNORECASE)
_OPERATION = re.compile(r"hcom_|hccl", re.IGNORECASE)
"""A collective as a whole; the tasks that it consists of lie beside it."""
_LAYER = re.compile(r"(AscendCL|ACL|Runtime|Node|HOST_HCCL|HCCL|Model)@")


def with_devices(events: Events, labels: Mapping[str, str]) -> Events:
    """Return the events with the categories that their processes show: kernels, copies, collectives and calls of CANN."""
    roles = [labels.get(pid, "") for pid, _ in events.threads]
    open_ = events.category == Category.OTHER
    hardware = open_ & np.array([ASCEND in role for role in roles])[events.thread]
    joint = open_ & np.array([_COMMUNICATION.search(role) is not None for role in roles])[events.thread]
    calls = open_ & np.array([_CANN.search(role) is not None for role in roles])[events.thread]
    collectives = joint & events.named(_OPERATION.match)
    category = events.category.copy()
    category[collectives] = Category.KERNEL
    work = hardware & ~events.named(_WAITS.match)
    if collectives.any():
        work &= ~events.named(_OPERATION.match)  # the same again, on the stream that it runs on
    copies = work & events.named(_COPIES.match)
    category[work & ~copies] = Category.KERNEL
    category[copies & ~_inside_mask(events, copies, collectives)] = Category.MEMCPY
    category[calls] = Category.RUNTIME
    device = (category >= Category.KERNEL) & (category <= Category.MEMSET) & open_
    threads, thread = _joined_threads(events, roles)
    number = np.array([_trailing_number(thread) for _, thread in events.threads], dtype=np.int32)
    stream = events.stream.astype(np.int32)
    stream[device] = np.where(stream[device] == NONE, number[events.thread[device]], stream[device])
    # The streams of communication are numbered by themselves.
    stream[collectives] += 1 << 16
    return replace(
        events,
        category=category,
        stream=stream,
        thread=thread,
        threads=threads,
        names=tuple(_LAYER.sub("", name) if name.partition("@")[2] else name for name in events.names),
    )


def _joined_threads(events: Events, roles: list[str]) -> tuple[tuple[tuple[str, str], ...], Codes]:
    """Return the threads, and those of the events, with the calls of CANN in the process that makes them, and the
    communication in the process of its device."""
    python = next((pid for (pid, _), role in zip(events.threads, roles, strict=True) if "Python" in role), None)
    devices = {
        _device_number(role): pid for (pid, _), role in zip(events.threads, roles, strict=True) if ASCEND in role
    }

    def moved(pid: str, role: str) -> str:
        if python is not None and _CANN.search(role):
            return python
        return devices.get(_device_number(role), pid) if _COMMUNICATION.search(role) else pid

    codes: dict[tuple[str, str], int] = {}
    new = [
        codes.setdefault(
            (moved(pid, role), tid if pid == moved(pid, role) or _CANN.search(role) else f"joint {tid}"), len(codes)
        )
        for (pid, tid), role in zip(events.threads, roles, strict=True)
    ]
    return tuple(codes), np.array(new, dtype=np.int32)[events.thread]


def _device_number(role: str) -> int:
    """The number of the device that a process is of: ``Ascend Hardware NPU 3``."""
    match = re.search(r"NPU[ _]?(\d+)", role)
    return int(match[1]) if match else 0


def rank_of_folder(path: Path) -> int | None:
    """Return the rank that torch_npu writes beside its output: ``profiler_info_3.json``; None where there is none."""
    numbers = [
        re.fullmatch(r"profiler_info_(\d+)\.json", file.name) for file in path.parent.parent.glob("profiler_info_*")
    ]
    return next((int(match[1]) for match in numbers if match is not None), None)


def _inside_mask(events: Events, chosen: NDArray[np.bool_], outer: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mark the chosen events that begin while one of the outer ones lasts."""
    within = np.zeros(len(events), dtype=bool)
    within[chosen] = holds(events.spans(outer), events.ts_ns[chosen])
    return within


def _trailing_number(text: str) -> int:
    digits = re.search(r"(\d+)\s*$", text)
    return int(digits[1]) % (1 << 15) if digits else 0
