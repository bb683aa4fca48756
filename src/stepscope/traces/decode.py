"""Blocks of event text -> columns. Typed decoding, names interned, nothing kept but the columns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import record
from stepscope.core.errors import DataError
from stepscope.traces.events import (
    CATEGORIES,
    NONE,
    WITH_VALUES,
    Category,
    CollectiveArgs,
    Events,
    MemoryInstants,
    Note,
    Shapes,
)
from stepscope.traces.scan import LINKS, BlockScanner, ScannedBlock
from stepscope.traces.source import repaired, why_invalid
from stepscope.traces.wire import (
    DECODER,
    NO_TEXT,
    ONE_EXACT,
    ONE_LOOSE,
    RANGE_US,
    RAW_LIST,
    UNREADABLE,
    Args,
    Event,
    GrowingColumn,
    as_number,
    from_floats,
    from_texts,
    loosely,
    narrow,
    snug,
    wide,
)

_NO_ARGS = Args()
_FLOW = frozenset("stf")
_NO_TIME = "without a start or a duration (left out)"


class _Interner(dict[Any, int]):
    """Value -> dense code, in order of first sight."""

    def __missing__(self, key: Any) -> int:
        code = self[key] = len(self)
        return code


@record
class DecodedPart:
    """What one builder has read: columns whose codes point into its own tables. Travels between processes."""

    columns: dict[str, NDArray[Any]]
    names: tuple[str, ...]
    threads: tuple[Any, ...]
    shapes: tuple[tuple[bytes, bytes], ...]
    by_event: tuple[dict[int, Any], ...]
    memory: list[tuple[int, int, int, int, int, int]]
    odd: Counter[str]
    foreign: Counter[tuple[str, str]]
    process_labels: dict[str, str]


class ColumnBuilder:
    """Collects the columns of one rank, block by block. ``add`` each block, then ``build`` once."""

    def __init__(self, path: object) -> None:
        self._path = path
        self._names = _Interner()
        self._threads = _Interner()
        self._shapes = _Interner()
        self._scanner = BlockScanner(
            code=self._names.__getitem__, place=self._threads.__getitem__, shape=self._shapes.__getitem__
        )
        self._parts = {key: GrowingColumn(dtype) for key, dtype in _COLUMNS.items()}
        self._memory: list[tuple[int, int, int, int, int, int]] = []
        self._collectives: dict[int, CollectiveArgs] = {}
        self._copied: dict[int, int] = {}
        self._flop: dict[int, int] = {}
        self._values: dict[int, str] = {}
        self._connections: dict[int, int] = {}
        self._count = 0
        self._odd: Counter[str] = Counter()
        self._loose = 0  # events read field by field
        self._repairs: Counter[str] = Counter()
        self.foreign: Counter[tuple[str, str]] = Counter()
        """Spans of categories that nobody knows, by (category, process id)."""
        self.process_labels: dict[str, str] = {}
        self.beside: Counter[str] = Counter()
        """Events that no profile of torch is made of, by their form."""

    def add(self, block: bytes, *, offset: int) -> None:
        """Decode one block, ``{...}, {...}``. Raises DataError where it cannot be understood even repaired."""
        try:
            self._take_block(block)
            return
        except UNREADABLE:
            pass
        mended = repaired(block)
        problem = why_invalid(mended.text)
        if problem is not None:
            near = mended.text[max(0, problem.position - 100) : problem.position + 60]
            raise DataError(
                f"{self._path}: not valid JSON near byte {offset + problem.position:,} of its text",
                why=f"{problem.text}: {near.decode(errors='replace')}",
                fix="export the trace again, or repair the event at that place",
            )
        self._repairs += mended.kinds
        try:
            self._take_block(mended.text)
        except UNREADABLE:
            self._take_loose(mended.text)

    def add_clean(self, block: bytes) -> None:
        """Decode one block that needs no repair. Raises one of UNREADABLE for any other, some of it then added."""
        self._take_block(block)

    def _take_block(self, block: bytes) -> None:
        scanned = self._scanner.scan(block)
        if scanned is not None and self._take_scanned(scanned, block):
            return
        self._take(DECODER.decode(b"[" + block + b"]"))

    def _take_scanned(self, scanned: ScannedBlock, block: bytes) -> bool:
        """Add what the scanner read, and decode the few events it left; False, and nothing added, where that fails."""
        columns, categories = scanned.columns, self._scanner.categories
        codes = np.array([_CODES[c] for c in categories], dtype=np.int8)[scanned.category]
        looked_at = scanned.special.copy()
        with_values = [self._names[name] for name in WITH_VALUES if name in self._names]
        if with_values:
            looked_at |= np.isin(columns["name"], with_values)
        indices = np.flatnonzero(looked_at)
        texts = [block[s:e] for s, e in zip(scanned.starts[indices], scanned.ends[indices], strict=True)]
        try:
            others = DECODER.decode(b"[" + b",".join(scanned.others) + b"]")
            special = DECODER.decode(b"[" + b",".join(texts) + b"]")
        except UNREADABLE:
            return False
        self._others(others)
        for key in _COLUMNS:
            self._parts[key].append(codes if key == "category" else columns[key])
        foreign = np.flatnonzero(codes == Category.OTHER).tolist()
        threads = list(self._threads) if foreign else []
        for i in foreign:
            self.foreign[categories[scanned.category[i]], _id_text(threads[columns["thread"][i]][0])] += 1
        self._sparse(indices + self._count, special, codes[indices])
        self._count += len(codes)
        return True

    def add_device(self, block: bytes) -> bool:
        """Add the device's events and the profiler's steps: time, category, name and place; every link stays NONE.

        False, and nothing added, where they cannot be read without decoding the block in full.
        """
        scanned = self._scanner.scan(block, device_only=True)
        return scanned is not None and self._take_scanned(scanned, block)

    def _take_loose(self, block: bytes) -> None:
        """Decode event by event, and where that fails field by field."""
        events = []
        for raw in RAW_LIST.decode(b"[" + block + b"]"):
            try:
                events.append(ONE_EXACT.decode(raw))
            except UNREADABLE:
                try:
                    events.append(loosely(ONE_LOOSE.decode(raw)))
                    self._loose += 1
                except UNREADABLE:
                    self._odd["that are not objects (left out)"] += 1
        self._take(events)

    def _take(self, events: list[Event]) -> None:
        """Add events: spans to the columns, all others one by one. Times that cannot be read are counted and left out."""
        spans = [e for e in events if e.ph == "X" and e.dur is not None and e.ts is not NO_TEXT]
        if len(spans) < len(events):
            self._others([e for e in events if e.ph != "X" or e.dur is None or e.ts is NO_TEXT])
        try:
            times = from_texts([bytes(e.ts) for e in spans])
        except ValueError:
            readable = [_time_of(e.ts) is not None for e in spans]
            self._odd[_NO_TIME] += readable.count(False)
            spans = [e for e, good in zip(spans, readable, strict=True) if good]
            times = from_texts([bytes(e.ts) for e in spans])
        self._spans(spans, times)

    def _spans(self, events: Sequence[Any], ts_ns: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        """Add spans that begin at these times, ns; those of a negative or impossible duration are counted and left out."""
        duration = np.array([e.dur for e in events], dtype=np.float64)
        wrong = ~((duration >= 0) & (duration <= RANGE_US))
        if wrong.any():
            negative = int((duration < 0).sum())
            self._odd["with a negative duration (left out)"] += negative
            self._odd[_NO_TIME] += int(wrong.sum()) - negative
            kept = np.flatnonzero(~wrong)
            events = [events[int(i)] for i in kept]
            ts_ns, duration = ts_ns[kept], duration[kept]
        names, threads, parts = self._names, self._threads, self._parts
        args = [e.args or _NO_ARGS for e in events]
        categories = [e.cat for e in events]
        add = parts.__getitem__
        add("ts_ns").append(ts_ns)
        dur_ns = from_floats(duration)
        add("dur_ns").append(dur_ns)
        codes = np.array([_CODES[c] for c in categories], dtype=np.int8)
        add("category").append(codes)
        add("name").append(np.array([names[e.name] for e in events], dtype=np.int32))
        add("thread").append(np.array([threads[e.pid, e.tid] for e in events], dtype=np.int32))
        correlation, external_id, streams, device, sequence, forward_thread = _link_columns(args)
        add("correlation").append(correlation)
        add("external_id").append(external_id)
        add("stream").append(narrow(streams))
        add("device").append(narrow(device))
        add("sequence").append(sequence)
        add("forward_thread").append(narrow(forward_thread))
        shapes = self._shapes
        add("shape").append(
            np.array(
                [NONE if a.dims is NO_TEXT else shapes[bytes(a.dims), bytes(a.types)] for a in args], dtype=np.int32
            )
        )
        for i in np.flatnonzero(codes == Category.OTHER).tolist():
            self.foreign[categories[i], _id_text(events[i].pid)] += 1
        rare = [i for i, (e, a) in enumerate(zip(events, args, strict=True)) if e.name in WITH_VALUES or _is_rare(a)]
        self._sparse(np.array(rare, dtype=np.int64) + self._count, [events[i] for i in rare], codes[rare])
        self._count += len(events)

    def _sparse(self, indices: NDArray[np.int64], events: Sequence[Any], codes: NDArray[np.int8]) -> None:
        """Keep what only few events have; ``indices`` are the places of ``events`` among all."""
        for i, e, code in zip(indices.tolist(), events, codes.tolist(), strict=True):
            a = e.args
            if a is None:
                continue
            if e.name in WITH_VALUES and a.values is not NO_TEXT:
                self._values[i] = bytes(a.values).decode()
            if a.collective is not None:
                self._collectives[i] = _collective_args(a)
            if a.flops > 0:
                self._flop[i] = a.flops
            if 0 <= a.connection < 2**63:
                self._connections[i] = a.connection
            if code in _WITH_SIZE:
                # ROCm's runtime writes sizes as text.
                size = next((n for n in map(as_number, (a.copied, a.size)) if n >= 0), None)
                if size is not None:
                    self._copied[i] = size

    def _others(self, events: Sequence[Any]) -> None:
        """Take what is no span: names of processes, allocations, and a count of what PyTorch's profiler does not write."""
        for e in events:
            phase = e.ph
            if phase in _FLOW and phase:
                continue
            if phase == "M":
                if e.name in ("process_name", "process_labels") and e.args is not None:
                    label = f"{_label_text(e.args.label)} {_label_text(e.args.labels)}".strip()
                    earlier = self.process_labels.get(_id_text(e.pid), "")
                    self.process_labels[_id_text(e.pid)] = f"{earlier} {label}".strip()
            elif phase in ("i", "I"):
                if e.name == "[memory]" and e.args is not None and e.args.memory_bytes is not None:
                    row = _memory_row(e)
                    if row is None:
                        self._odd[_NO_TIME] += 1
                    else:
                        self._memory.append(row)
            elif phase == "X":
                self._odd[_NO_TIME] += 1
            elif phase in ("B", "E"):
                self._odd["as begin/end pairs, which PyTorch's profiler does not write (left out)"] += 1
                self.beside["begin/end event"] += 1
            elif phase in _NO_SPANS:
                self.beside[_NO_SPANS[phase]] += 1
            else:
                self._odd["of no known phase (left out)"] += 1

    def packed(self) -> DecodedPart:
        """Everything added, to be merged into another builder; this one is empty afterwards."""
        return DecodedPart(
            columns={key: self._parts.pop(key).joined() for key in _COLUMNS},
            names=tuple(self._names),
            threads=tuple(self._threads),
            shapes=tuple(self._shapes),
            by_event=self._by_event(),
            memory=self._memory,
            odd=self._odd,
            foreign=self.foreign,
            process_labels=self.process_labels,
        )

    def merge(self, part: DecodedPart) -> None:
        """Add what another builder has read of the same file, behind what was added so far."""
        codes = {
            "name": [self._names[name] for name in part.names],
            "thread": [self._threads[thread] for thread in part.threads],
            "shape": [self._shapes[shape] for shape in part.shapes],
        }
        for key, values in part.columns.items():
            own = codes.get(key)
            # NONE, -1, takes the last one.
            self._parts[key].append(values if own is None else np.array([*own, NONE], dtype=np.int32)[values])
        for ours, theirs in zip(self._by_event(), part.by_event, strict=True):
            ours.update((self._count + i, value) for i, value in theirs.items())
        self._count += len(part.columns["ts_ns"])
        self._memory += part.memory
        self._odd += part.odd
        self.foreign += part.foreign
        self.process_labels |= part.process_labels

    def _by_event(self) -> tuple[dict[int, Any], ...]:
        return self._collectives, self._copied, self._flop, self._values, self._connections

    def build(self) -> Events:
        """The columns of everything added; the builder is empty afterwards."""
        columns = {}
        for key in _COLUMNS:
            columns[key] = self._parts.pop(key).joined()
        device = (columns["category"] >= Category.KERNEL) & (columns["category"] <= Category.MEMSET)
        no_stream = device & (columns["stream"] == NONE)
        threads = tuple((_id_text(p), _id_text(t)) for p, t in self._threads)
        if self._connections:
            places = np.array(list(self._connections), dtype=np.int64)
            numbers = np.array(list(self._connections.values()), dtype=np.int64)
            unlinked = columns["correlation"][places] == NONE
            columns["correlation"][places[unlinked]] = numbers[unlinked]
        if no_stream.any():
            streams = narrow(wide([_trailing_number(t) for _, t in threads]))
            columns["stream"][no_stream] = streams[columns["thread"][no_stream]]
        for key in columns.keys() - {"ts_ns", "dur_ns"}:  # ids in types that hold the index of an event, too
            columns[key] = snug(columns[key], least=np.int32 if key in _IDS else np.int8)
        return Events(
            **columns,
            names=tuple(self._names),
            threads=threads,
            shapes=tuple(Shapes(dims=d.decode(), types=t.decode()) for d, t in self._shapes),
            collectives=self._collectives,
            copied_bytes=self._copied,
            flop=self._flop,
            values=self._values,
            memory=_memory_table(self._memory) if self._memory else None,
        )

    def notes(self) -> list[Note]:
        """Return what was odd in the events, one note a kind."""
        remarks = [Note(kind="repaired", text=f"{n:,} {kind} repaired") for kind, n in self._repairs.items()]
        if self._loose:
            text = f"{self._loose:,} events with values of unexpected types; invalid values count as not recorded"
            remarks.append(Note(kind="repaired", text=text))
        return remarks + [Note(kind="dropped", text=f"{n:,} events {kind}") for kind, n in self._odd.items() if n]


_NO_SPANS = {
    "C": "counter", "b": "asynchronous event", "e": "asynchronous event", "n": "asynchronous event", "P": "sample",
    "N": "object", "O": "object", "D": "object",
}  # fmt: skip
"""Phases of other timelines' events, in words."""

_IDS = ("correlation", "external_id", "sequence")
_COLUMNS: dict[str, Any] = {
    "ts_ns": np.int64, "dur_ns": np.int64, "category": np.int8, "name": np.int32, "thread": np.int32,
    "stream": np.int32, "device": np.int32, "correlation": np.int64, "external_id": np.int64,
    "sequence": np.int64, "forward_thread": np.int32, "shape": np.int32,
}  # fmt: skip


class _Codes(dict[str, int]):
    """Category by its spelling: calls of any maker's runtime and driver by how it ends, OTHER for the rest."""

    def __missing__(self, key: str) -> int:
        calls = Category.DRIVER if key.endswith("_driver") else Category.OTHER
        return int(Category.RUNTIME if key.endswith("_runtime") else calls)


_CODES = _Codes({key: int(category) for key, category in CATEGORIES.items()})


_LINKS = attrgetter(*LINKS)
_WITH_SIZE = frozenset((Category.MEMCPY, Category.MEMSET, Category.RUNTIME))


def _is_rare(a: Args) -> bool:
    return a.collective is not None or a.flops > 0 or a.copied != NONE or a.size != NONE or a.connection != NONE


def _link_columns(args: list[Args]) -> list[NDArray[np.int64]]:
    """The six columns of numbers, in the order of _LINKS."""
    try:
        table = np.fromiter(chain.from_iterable(map(_LINKS, args)), np.int64, 6 * len(args))
        return list(np.ascontiguousarray(table.reshape(-1, 6).T))
    except (ValueError, OverflowError):  # a stream as text, or a number beyond 64 bits
        return [wide([as_number(v) for v in column]) for column in zip(*map(_LINKS, args), strict=True)]


def _collective_args(a: Args) -> CollectiveArgs:
    """Return what an event's arguments say of a collective."""
    ranks = bytes(a.group_ranks).strip(b'"').decode(errors="replace")
    return CollectiveArgs(
        name=a.collective or "",
        in_elements=a.in_elements,
        out_elements=a.out_elements,
        dtype=a.dtype,
        group_name=a.group_name,
        group_description=a.group_description,
        group_size=a.group_size,
        group_ranks=ranks or None,
        sequence=a.group_sequence,
        comms_id=a.comms_id,
        source_rank=a.source_rank,
        destination_rank=a.destination_rank,
    )


def _memory_row(e: Any) -> tuple[int, int, int, int, int, int] | None:
    """Return an allocation: time in ns, bytes, allocated, reserved, device type and number; None where a number is out of
    range."""
    ts = _time_of(e.ts)
    a = e.args
    row = (a.memory_bytes, a.allocated, a.reserved, a.device_type, a.device_id)
    if ts is None or any(abs(v) >= 2**63 for v in row):
        return None
    return (ts, *row)


def _time_of(ts: Any) -> int | None:
    try:
        return int(from_texts([bytes(ts)])[0])
    except ValueError:
        return None


def _memory_table(rows: list[tuple[int, int, int, int, int, int]]) -> MemoryInstants:
    """Return the allocations in order of time, as columns."""
    table = np.array(sorted(rows, key=lambda r: r[0]), dtype=np.int64)
    return MemoryInstants(
        ts_ns=table[:, 0],
        size_bytes=table[:, 1],
        allocated_bytes=table[:, 2],
        reserved_bytes=table[:, 3],
        device_type=table[:, 4].astype(np.int32),
        device=table[:, 5].astype(np.int32),
    )


def _label_text(raw: msgspec.Raw) -> str:
    return bytes(raw).strip(b'"').decode(errors="replace")


def _id_text(value: Any) -> str:
    return "" if value is None else str(value)


def _trailing_number(text: str) -> int:
    match = re.search(r"([0-9]+)\s*$", text)
    return as_number(match[1]) if match else NONE
