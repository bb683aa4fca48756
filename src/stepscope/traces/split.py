"""Several ranks in one file, as tools that join traces write them, and several devices of one process: told apart by what
their processes are called, by the process that launched, or by device.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import dataclass
from stepscope.core.words import listed
from stepscope.records.trace_quality import QualityFact
from stepscope.stats.spans import distinct
from stepscope.traces.events import NONE, Category, Events, Ints, MemoryInstants, Note, RankTrace, selected
from stepscope.traces.file_names import natural
from stepscope.traces.places import WorkPlaces, key_of
from stepscope.traces.plausible import plausible

AMBIGUOUS = 0.01
"""Of the device's events: more whose launch may be of either process, and launches do not tell ranks apart."""

_RANK_LABEL = re.compile(r"(?<![a-z])(?:rank|tp)[-_ .:\[]*(\d+)", re.IGNORECASE)
_PREFIX = re.compile(r"(.*[^\d\s])[\s]*\d+$")
_EARLY_NS = 50_000
"""A kernel may begin so long before its launch, by the resolution of clocks."""

SHARED, UNKNOWN = -1, -2


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """owner: for each event the number of its group, or SHARED. names, numbers: of the groups, and their ranks. how: by what
    they are told apart, in words. assumed: which process is of which device."""

    owner: Ints
    numbers: tuple[int, ...]
    names: tuple[str, ...]
    how: str
    assumed: bool = False


def ranks_in(trace: RankTrace, places: WorkPlaces, *, alone: bool) -> tuple[RankTrace, ...]:
    """Return the ranks of one file: itself, where it holds one. alone: no other file is of the job; else several devices of
    one process stay together, and are a fact of quality."""
    parts = _by_label(trace, places) or _by_launch(trace, places)
    if parts is None and len(places.hosts) <= 1 and len(places.devices) > 1:
        if not alone:
            fact = QualityFact(kind="devices-together", count=len(places.devices))
            return (replace(trace, quality=(*trace.quality, fact)),)
        parts = _by_device(trace, places)
    if parts is None:
        if len(places.hosts) <= 1:
            return (trace,)
        fact = QualityFact(kind="ranks-together", count=len(places.hosts))
        return (replace(trace, quality=(*trace.quality, fact)),)
    if len(parts.numbers) <= 1:
        return (trace,)
    return tuple(_rank_traces(trace, parts))


def _rank_traces(trace: RankTrace, parts: _Parts) -> Iterator[RankTrace]:
    """Yield the trace of each rank in a file, with the events that all share; a note says how they were separated."""
    events, count = trace.events, len(parts.numbers)
    what = f"{count} devices in one process" if parts.how == "device" else f"{count} ranks in one file"
    ranks = [f"rank {number} is {name}" for number, name in zip(parts.numbers, parts.names, strict=True)]
    text = f"{what}, separated by {parts.how}: {listed(ranks, at_most=4)}"
    if parts.assumed:
        text += "; which process launches on which device is assumed from their order"
    world = trace.meta.world_size
    for at, number in enumerate(parts.numbers):
        own = selected(events, (parts.owner == at) | (parts.owner == SHARED))
        own, quality = plausible(replace(own, memory=_memory_of(events.memory, own)))
        yield replace(
            trace,
            rank=number,
            events=own,
            size_bytes=trace.size_bytes * len(own) // max(len(events), 1),
            meta=replace(trace.meta, rank=number, world_size=max(world, count) if world is not None else None),
            notes=(*trace.notes, *([Note(kind="divided", text=text)] if not at else [])),
            quality=(
                *trace.quality,
                *quality,
                QualityFact(kind="divided", count=count, names=(parts.how,), matters=False),
            ),
            alone=False,
        )


def _memory_of(memory: MemoryInstants | None, own: Events) -> MemoryInstants | None:
    """Return the allocations on the devices of these events."""
    if memory is None:
        return None
    devices = distinct(own.device[own.is_device])
    kept = np.isin(memory.device, devices) | (memory.device_type == 0)
    return replace(memory, **{column.name: getattr(memory, column.name)[kept] for column in fields(memory)})


def _by_label(trace: RankTrace, places: WorkPlaces) -> _Parts | None:
    """Tell ranks apart by what processes are called (``rank 3: python``) or by their ids (``[TP3] 712``)."""
    labels = [_rank_and_label(pid, trace.meta.processes.get(pid, "")) for pid in places.pids]
    keys = {labels[process] for process, _ in places.devices} | {labels[process] for process in places.hosts}
    if None in keys or len(keys) < 2:
        return None
    of_devices, of_hosts = {labels[process] for process, _ in places.devices}, {labels[host] for host in places.hosts}
    if {1} < {len(of_devices), len(of_hosts)}:
        return None  # they share a process, or a device, which is called as the last one
    order = sorted((key for key in keys if key is not None), key=lambda key: (key[0] is None, key[0] or 0, key[1]))
    number = {key: at for at, key in enumerate(order)}
    of_process = np.array([SHARED if key is None else number.get(key, SHARED) for key in labels], dtype=np.int64)
    stated = [key[0] for key in order]
    numbers = [n for n in stated if n is not None]
    return _Parts(
        owner=of_process[places.process],
        numbers=tuple(numbers) if len(set(numbers)) == len(order) else tuple(range(len(order))),
        names=tuple(text for _, text in order),
        how="the names of processes",
    )


def _rank_and_label(pid: str, label: str) -> tuple[int | None, str] | None:
    """Return (rank, text) that a process's name or id states; None where neither does."""
    if match := _RANK_LABEL.search(label):
        return int(match[1]), match[0]
    if pid.lstrip("-").isdigit() or (match := _PREFIX.match(pid)) is None:
        return None
    prefix = match[1].strip(" -_/:")
    rank = re.search(r"(\d+)\D*$", prefix)
    return (int(rank[1]) if rank else None), prefix


def _by_launch(trace: RankTrace, places: WorkPlaces) -> _Parts | None:
    """Tell ranks apart by the process that launched; None where one process does, or launches do not tell."""
    events, hosts = trace.events, places.hosts
    if len(hosts) < 2:
        return None
    device = np.flatnonzero(places.place != NONE)
    launched = _launcher_hosts(events, places, device)
    owner, assumed = launched, False
    if launched is None:
        by_place = _launcher_hosts_by_order(events, places, device)
        if by_place is None:
            return None
        owner, assumed = by_place
    assert owner is not None
    used = [host for at, host in enumerate(hosts) if (owner == at).any()]
    if len(used) < 2:
        return None
    number = {host: at for at, host in enumerate(used)}
    whole = np.array([number.get(process, SHARED) for process in range(len(places.pids))], dtype=np.int64)[
        places.process
    ]
    moved = np.array([number.get(host, SHARED) for host in hosts] + [SHARED], dtype=np.int64)
    whole[device] = moved[owner]
    marks = events.category == Category.GPU_ANNOTATION
    for process in distinct(places.process[marks]).tolist():
        here = distinct(whole[device[places.process[device] == process]])
        whole[marks & (places.process == process)] = int(here[0]) if len(here) == 1 else UNKNOWN
    own_device = [_main_device(events, device[whole[device] == at]) for at in range(len(used))]
    distinct_devices = len(set(own_device)) == len(used) and NONE not in own_device
    order = sorted(range(len(used)), key=lambda at: natural(places.pids[used[at]]))
    numbers = own_device if distinct_devices else [order.index(at) for at in range(len(used))]
    return _Parts(
        owner=whole,
        numbers=tuple(numbers),
        names=tuple(f"process {places.pids[host]}" for host in used),
        how="process and device" if distinct_devices else "process",
        assumed=assumed,
    )


def _launcher_hosts(events: Events, places: WorkPlaces, device: Ints) -> Ints | None:
    """Return for each of these device events which host launched it, by the numbers that link launches and kernels; None
    where those of several hosts are alike."""
    calls = np.flatnonzero(events.of(Category.RUNTIME, Category.DRIVER) & (events.correlation > 0))
    at = np.searchsorted(np.array(places.hosts), places.process[calls])
    numbers = events.correlation[calls]
    order = np.lexsort((at, numbers))
    numbers, at = numbers[order], at[order]
    first, last = (
        np.searchsorted(numbers, events.correlation[device], "left"),
        np.searchsorted(numbers, events.correlation[device], "right"),
    )
    linked = last > first
    if not linked.any():
        return None
    owner = np.full(len(device), NONE, dtype=np.int64)
    owner[linked] = at[first[linked]]
    if np.count_nonzero(at[first[linked]] != at[last[linked] - 1]) > AMBIGUOUS * len(device):
        return None
    lanes = places.place[device] * (1 << 20) + events.stream[device]
    for lane in distinct(lanes[~linked]).tolist():  # work without a launch: as the rest of its stream
        numbered = owner[(lanes == lane) & linked]
        if len(numbered):
            owner[(lanes == lane) & ~linked] = int(np.bincount(numbered).argmax())
    return owner


def _launcher_hosts_by_order(events: Events, places: WorkPlaces, device: Ints) -> tuple[Ints, bool] | None:
    """Return the same of files whose ranks number launches alike: a host for each device, by how many of its kernels begin
    after their launches, then by order; and whether that is assumed. None where devices are not as many as hosts."""
    keys = [key_of(process, number) for process, number in places.devices]
    if len(keys) != len(places.hosts):
        return None
    calls = np.flatnonzero(events.of(Category.RUNTIME, Category.DRIVER) & (events.correlation > 0))
    scores = np.zeros((len(keys), len(places.hosts)))
    for row, key in enumerate(keys):
        here = device[places.place[device] == key]
        for column, host in enumerate(places.hosts):
            scores[row, column] = _plausible_launches(events, here, calls[places.process[calls] == host])
    chosen: dict[int, int] = {}
    assumed = False
    for row in range(len(keys)):
        free = [column for column in range(len(places.hosts)) if column not in chosen.values()]
        best = max(free, key=lambda column: (scores[row, column], column == row))
        assumed |= sum(scores[row, column] == scores[row, best] for column in free) > 1
        chosen[row] = best
    owner = np.full(len(device), NONE, dtype=np.int64)
    for row, key in enumerate(keys):
        owner[places.place[device] == key] = chosen[row]
    return owner, assumed


def _plausible_launches(events: Events, device: Ints, calls: Ints) -> int:
    """Count the device's events that begin after the host's call of the same number."""
    order = np.argsort(events.correlation[calls], kind="stable")
    numbers, starts = events.correlation[calls][order], events.ts_ns[calls][order]
    place = np.minimum(np.searchsorted(numbers, events.correlation[device]), max(len(numbers) - 1, 0))
    if not len(numbers):
        return 0
    same = numbers[place] == events.correlation[device]
    return int((same & (events.ts_ns[device] >= starts[place] - _EARLY_NS)).sum())


def _by_device(trace: RankTrace, places: WorkPlaces) -> _Parts:
    """Divide one process by device; its host is everyone's, without the launches on other devices."""
    events = trace.events
    keys = [key_of(process, number) for process, number in places.devices]
    owner = np.full(len(events), SHARED, dtype=np.int64)
    device = np.flatnonzero(places.place != NONE)
    of_place = {key: at for at, key in enumerate(keys)}
    owner[device] = [of_place.get(key, 0) for key in places.place[device].tolist()]
    marks = events.category == Category.GPU_ANNOTATION
    for at, (process, _) in enumerate(places.devices):
        owner[marks & (places.process == process)] = at
    calls = np.flatnonzero(events.of(Category.RUNTIME, Category.DRIVER) & (events.correlation > 0))
    by_number: Mapping[int, int] = dict(zip(events.correlation[device].tolist(), owner[device].tolist(), strict=True))
    owner[calls] = [by_number.get(number, SHARED) for number in events.correlation[calls].tolist()]
    numbers = [number for _, number in places.devices]
    return _Parts(
        owner=owner,
        numbers=tuple(numbers) if len(set(numbers)) == len(numbers) and min(numbers) >= 0 else tuple(range(len(keys))),
        names=tuple(f"device {number}" for number in numbers),
        how="device",
    )


def _main_device(events: Events, chosen: Ints) -> int:
    devices = events.device[chosen]
    numbered: NDArray[np.signedinteger] = devices[devices >= 0]
    return int(np.bincount(numbered, weights=events.dur_ns[chosen][devices >= 0]).argmax()) if len(numbered) else NONE
