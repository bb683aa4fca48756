"""Which processes and devices have work in a file: more than one may be several ranks."""

from __future__ import annotations

from dataclasses import field

import numpy as np

from stepscope.core.dataclass import dataclass
from stepscope.stats.spans import distinct
from stepscope.traces.events import NONE, Category, Events, Ints

LEAST_TIME = 0.05
"""Of the busiest device's kernel time: a device with less is one that a process touches beside its own."""

_DEVICES = 1 << 20


def key_of(process: int, device: int) -> int:
    """One number for a process and a device, which is NONE where none is recorded."""
    return process * _DEVICES + device + 1


@dataclass(frozen=True, kw_only=True)
class WorkPlaces:
    """Where the events of a file run. process: of each event, into pids. place: of each device event, into ``devices``;
    NONE for host events. devices: (process, device) with kernels worth a rank. hosts: processes that launch."""

    process: Ints
    place: Ints
    devices: tuple[tuple[int, int], ...]
    hosts: tuple[int, ...]
    pids: tuple[str, ...] = field(repr=False)

    @property
    def several(self) -> bool:
        return len(self.devices) > 1 or len(self.hosts) > 1


def places_of(events: Events) -> WorkPlaces:
    """Return which processes and devices have work in the file."""
    pids = tuple(dict.fromkeys(pid for pid, _ in events.threads))
    number = {pid: at for at, pid in enumerate(pids)}
    of_thread = np.array([number[pid] for pid, _ in events.threads], dtype=np.int64)
    if len(pids) == 1 or not len(events) or _is_one(events, of_thread):
        nothing = np.empty(0, dtype=np.int64)
        return WorkPlaces(process=nothing, place=nothing, devices=(), hosts=(), pids=pids)
    process = of_thread[events.thread]
    device = events.is_device
    place = np.full(len(events), NONE, dtype=np.int64)
    place[device] = process[device] * _DEVICES + events.device[device] + 1
    kernels = np.flatnonzero(events.category == Category.KERNEL)
    spent = {int(key): int(events.dur_ns[kernels[place[kernels] == key]].sum()) for key in distinct(place[kernels])}
    if any(key % _DEVICES for key in spent):  # a kernel without a device is on one of the others
        spent = {key: ns for key, ns in spent.items() if key % _DEVICES}
    most = max(spent.values(), default=0)
    devices = tuple(
        (key // _DEVICES, key % _DEVICES - 1) for key, ns in sorted(spent.items()) if ns >= LEAST_TIME * most
    )
    launches = process[events.of(Category.RUNTIME, Category.DRIVER)]
    calls = launches if len(launches) else process[events.of(Category.CPU_OP, Category.USER_ANNOTATION)]
    hosts = tuple(int(p) for p in distinct(calls))
    return WorkPlaces(process=process, place=place, devices=devices, hosts=hosts, pids=pids)


def _is_one(events: Events, of_thread: Ints) -> bool:
    """Return whether one process launches, and one has kernels, on one device: as of most files."""
    kinds = len(Category)
    here = np.bincount(events.thread.astype(np.intp) * kinds + events.category, minlength=len(of_thread) * kinds)
    counts = here.reshape(-1, kinds) > 0
    launches = counts[:, [Category.RUNTIME, Category.DRIVER]].any(axis=1)
    if not launches.any():
        launches = counts[:, [Category.CPU_OP, Category.USER_ANNOTATION]].any(axis=1)
    kernels = counts[:, Category.KERNEL]
    if len(distinct(of_thread[launches])) > 1 or len(distinct(of_thread[kernels])) > 1:
        return False
    devices = events.device[events.category == Category.KERNEL]
    return not len(devices) or bool(devices.min() == devices.max())
