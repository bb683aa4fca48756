"""Blocks of event text -> columns. Typed decoding, names interned, nothing kept but the columns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from stepscope.core.errors import DataError
from stepscope.traces.decimals import FLOAT_LIMIT_US, from_floats, from_text, from_texts
from stepscope.traces.device_scan import Row
from stepscope.traces.envelope import KINETO_CUT
from stepscope.traces.events import (
    CATEGORIES,
    NONE,
    Category,
    CollectiveArgs,
    Events,
    MemoryInstants,
    Note,
    Shapes,
)
from stepscope.traces.repair import is_valid, repaired

_NO_TEXT = msgspec.Raw(b"")


class _Args(msgspec.Struct, gc=False, rename={
    "external_id": "External id", "sequence": "Sequence number", "forward_thread": "Fwd thread id",
    "dims": "Input Dims", "types": "Input type", "collective": "Collective name",
    "in_elements": "In msg nelems", "out_elements": "Out msg nelems",
    "group_name": "Process Group Name", "group_description": "Process Group Description",
    "group_size": "Group size", "group_ranks": "Process Group Ranks", "group_sequence": "Seq",
    "comms_id": "Comms Id", "label": "name", "allocated": "Total Allocated", "reserved": "Total Reserved",
    "memory_bytes": "Bytes", "device_type": "Device Type", "device_id": "Device Id", "copied": "bytes",
}):  # fmt: skip
    correlation: int = NONE
    external_id: int = NONE
    stream: int | str = NONE
    device: int = NONE
    sequence: int = NONE
    forward_thread: int = NONE
    dims: msgspec.Raw = _NO_TEXT
    types: msgspec.Raw = _NO_TEXT
    copied: int | str = NONE
    size: int | str = NONE
    flops: int = NONE
    collective: str | None = None
    in_elements: int | None = None
    out_elements: int | None = None
    dtype: str | None = None
    group_name: str | None = None
    group_description: str | None = None
    group_size: int | None = None
    group_ranks: msgspec.Raw = _NO_TEXT
    group_sequence: int | None = None
    comms_id: int | None = None
    label: msgspec.Raw = _NO_TEXT
    allocated: int = NONE
    reserved: int = NONE
    memory_bytes: int | None = None
    device_type: int = NONE
    device_id: int = NONE


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: float | None = None
    dur: float | None = None
    args: _Args | None = None


class _ExactEvent(msgspec.Struct, gc=False):
    """As _Event with the time as text, for absolute unix times that a float cannot hold."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: msgspec.Raw = _NO_TEXT
    dur: float | None = None
    args: _Args | None = None


class _LooseEvent(msgspec.Struct, gc=False):
    """As _ExactEvent with every field of any type: for events whose arguments are typed unexpectedly."""

    ph: Any = ""
    cat: Any = ""
    name: Any = ""
    pid: Any = None
    tid: Any = None
    ts: msgspec.Raw = _NO_TEXT
    dur: Any = None
    args: Any = None


_DECODER = msgspec.json.Decoder(list[_Event])
_EXACT_DECODER = msgspec.json.Decoder(list[_ExactEvent])
_LOOSE_DECODER = msgspec.json.Decoder(list[_LooseEvent])
_FIELDS = msgspec.structs.fields(_Args)
_FRACTION = re.compile(rb'"ts"\s*:\s*\d+\.')
_NO_ARGS = _Args()
_FLOW = frozenset("stf")


class _Interner(dict[Any, int]):
    """Value -> dense code, in order of first sight."""

    def __missing__(self, key: Any) -> int:
        code = self[key] = len(self)
        return code


class ColumnBuilder:
    """Collects the columns of one rank, block by block. ``add`` each block, then ``build`` once."""

    def __init__(self, path: object) -> None:
        self._path = path
        self._names = _Interner()
        self._threads = _Interner()
        self._shapes = _Interner()
        self._parts: dict[str, list[np.ndarray[Any, Any]]] = {key: [] for key in _COLUMNS}
        self._memory: list[tuple[int, int, int, int, int, int]] = []
        self._collectives: dict[int, CollectiveArgs] = {}
        self._copied: dict[int, int] = {}
        self._flop: dict[int, int] = {}
        self._count = 0
        self._scanned_names: dict[bytes, int] = {}
        self._scanned_places: dict[tuple[bytes, bytes], int] = {}
        self._far = False  # times too large for a float were seen
        self._odd: Counter[str] = Counter()
        self._repairs: Counter[str] = Counter()
        self.thread_names: dict[tuple[str, str], str] = {}
        self.profiler_window_ns: tuple[int, int] | None = None

    def add(self, block: bytes, *, offset: int) -> None:
        """Decode one block, ``{...}, {...}``. Raises DataError where it cannot be understood even repaired."""
        text = b"[" + block + b"]"
        try:
            if self._far:
                self._take_exact(_EXACT_DECODER.decode(text))
            else:
                self._take(_DECODER.decode(text), text)
        except msgspec.ValidationError:
            self._take_loose(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._add_malformed(block, offset)

    def add_device_rows(self, rows: Sequence[Row]) -> None:
        """Add events found by the device scan: time, category, name and place; every link stays NONE."""
        add = self._parts.__getitem__
        categories, names, pids, tids, ts, dur = zip(*rows, strict=True) if rows else ((),) * 6
        table = self._scanned_names
        add("ts_ns").append(from_texts(ts))
        add("dur_ns").append(from_texts(dur))
        add("category").append(np.array([_SCANNED[c] for c in categories], dtype=np.int8))
        for name in set(names).difference(table):
            table[name] = self._names[msgspec.json.decode(b'"' + name + b'"')]
        add("name").append(np.array([table[n] for n in names], dtype=np.int32))
        for place in set(zip(pids, tids, strict=True)).difference(self._scanned_places):
            self._scanned_places[place] = self._threads[_place(place[0]), _place(place[1])]
        places = [self._scanned_places[p] for p in zip(pids, tids, strict=True)]
        add("thread").append(np.array(places, dtype=np.int32))
        for key in ("correlation", "external_id", "stream", "device", "sequence", "forward_thread", "shape"):
            add(key).append(np.full(len(rows), NONE, dtype=_COLUMNS[key]))
        self._count += len(rows)

    def _add_malformed(self, block: bytes, offset: int) -> None:
        mended = repaired(block)
        if is_valid(mended.text):
            self._repairs += mended.kinds
            self.add(mended.text, offset=offset)
            return
        # Event by event in Kineto's layout, to name the one place.
        position = offset
        for event in mended.text.split(KINETO_CUT):
            whole = event.strip()
            whole = whole if whole.startswith(b"{") else b"{" + whole
            whole = whole if whole.endswith(b"}") else whole + b"}"
            if not is_valid(whole):
                raise DataError(
                    f"{self._path}: not valid JSON near byte {position:,} of its text",
                    why=f"this event cannot be read: {whole[:200].decode(errors='replace')}",
                    fix="export the trace again, or repair the event at that place",
                )
            position += len(event) + len(KINETO_CUT)
        raise DataError(
            f"{self._path}: not valid JSON in the {len(block):,} bytes after {offset:,} of its text",
            why="the events there do not separate cleanly",
            fix="export the trace again",
        )

    def _take_loose(self, text: bytes) -> None:
        events = _LOOSE_DECODER.decode(text)
        exact = []
        for e in events:
            exact.append(_ExactEvent(
                ph=_text(e.ph), cat=_text(e.cat), name=_text(e.name), pid=_id(e.pid), tid=_id(e.tid),
                ts=msgspec.Raw(bytes(e.ts).strip(b'"')), dur=_number(e.dur),
                args=_loose_args(e.args) if isinstance(e.args, dict) else None,
            ))  # fmt: skip
        self._odd["with arguments of unexpected types (read one by one)"] += len(exact)
        self._take_exact(exact)

    def _take(self, events: list[_Event], text: bytes) -> None:
        spans = [e for e in events if e.ph == "X" and e.ts is not None and e.dur is not None]
        times = np.array([e.ts for e in spans], dtype=np.float64)
        far = len(times) > 0 and max(float(times.max()), -float(times.min())) >= FLOAT_LIMIT_US
        if far and _FRACTION.search(text):
            self._far = True
            self._take_exact(_EXACT_DECODER.decode(text))
            return
        if len(spans) < len(events):
            self._others([e for e in events if e.ph != "X" or e.ts is None or e.dur is None])
        self._spans(spans, from_floats(times))

    def _take_exact(self, events: list[_ExactEvent]) -> None:
        spans = [e for e in events if e.ph == "X" and e.dur is not None and e.ts is not _NO_TEXT]
        if len(spans) < len(events):
            self._others([e for e in events if e.ph != "X" or e.dur is None or e.ts is _NO_TEXT])
        try:
            times = from_texts([bytes(e.ts) for e in spans])
        except ValueError:
            readable = [_is_number(e) for e in spans]
            self._odd["without a start or a duration (left out)"] += readable.count(False)
            spans = [e for e, good in zip(spans, readable, strict=True) if good]
            times = from_texts([bytes(e.ts) for e in spans])
        self._spans(spans, times)

    def _spans(self, events: Sequence[Any], ts_ns: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        duration = np.array([e.dur for e in events], dtype=np.float64)
        wrong = ~(duration >= 0)
        if wrong.any():
            self._odd["with a negative duration (left out)"] += int(wrong.sum())
            kept = np.flatnonzero(~wrong)
            events = [events[int(i)] for i in kept]
            ts_ns, duration = ts_ns[kept], duration[kept]
        names, threads, parts = self._names, self._threads, self._parts
        args = [e.args or _NO_ARGS for e in events]
        categories = [e.cat for e in events]
        add = parts.__getitem__
        add("ts_ns").append(ts_ns)
        add("dur_ns").append(from_floats(duration))
        codes = np.array([CATEGORIES.get(c, Category.OTHER) for c in categories], dtype=np.int8)
        add("category").append(codes)
        add("name").append(np.array([names[e.name] for e in events], dtype=np.int32))
        add("thread").append(np.array([threads[e.pid, e.tid] for e in events], dtype=np.int32))
        add("correlation").append(_wide([a.correlation for a in args]))
        add("external_id").append(_wide([a.external_id for a in args]))
        add("stream").append(_small([a.stream if type(a.stream) is int else NONE for a in args]))
        add("device").append(_small([a.device for a in args]))
        add("sequence").append(_wide([a.sequence for a in args]))
        add("forward_thread").append(_small([a.forward_thread for a in args]))
        shapes = self._shapes
        add("shape").append(
            np.array(
                [NONE if a.dims is _NO_TEXT else shapes[bytes(a.dims), bytes(a.types)] for a in args],
                dtype=np.int32,
            )
        )
        self._sparse(args, codes, categories, ts_ns, duration)
        self._count += len(events)

    def _sparse(
        self, args: list[_Args], codes: Any, categories: list[str], ts_ns: Any, duration: Any
    ) -> None:
        base = self._count
        for i, a in enumerate(args):
            if a.collective is not None:
                self._collectives[base + i] = _collective(a)
            if a.flops > 0:
                self._flop[base + i] = a.flops
        copies = np.isin(codes, (Category.MEMCPY, Category.MEMSET, Category.RUNTIME))
        for i in np.flatnonzero(copies).tolist():
            for size in (args[i].copied, args[i].size):
                # ROCm's runtime writes sizes as text.
                known = int(size) if not isinstance(size, str) else int(size) if size.isdigit() else NONE
                if known >= 0:
                    self._copied[base + i] = known
                    break
        if "Trace" in categories:
            i = categories.index("Trace")
            start = int(ts_ns[i])
            self.profiler_window_ns = (start, start + round(float(duration[i]) * 1000))

    def _others(self, events: Sequence[Any]) -> None:
        for e in events:
            phase = e.ph
            if phase in _FLOW and phase:
                continue
            if phase == "M":
                if e.name == "thread_name" and e.args is not None:
                    label = bytes(e.args.label).strip(b'"').decode(errors="replace")
                    self.thread_names[_id_text(e.pid), _id_text(e.tid)] = label
            elif phase in ("i", "I"):
                if e.name == "[memory]" and e.args is not None and e.args.memory_bytes is not None:
                    self._memory.append(_memory_row(e))
            elif phase == "X":
                self._odd["without a start or a duration (left out)"] += 1
            elif phase in ("B", "E"):
                self._odd["as begin/end pairs, which PyTorch's profiler does not write (left out)"] += 1
            elif phase not in ("C", "b", "e", "n", "P", "N", "O", "D"):
                self._odd["of no known phase (left out)"] += 1

    def build(self) -> Events:
        """The columns of everything added; the builder is empty afterwards."""
        columns = {}
        for key, dtype in _COLUMNS.items():
            parts = self._parts[key]
            columns[key] = np.concatenate(parts) if parts else np.empty(0, dtype=dtype)
            parts.clear()
        device = (columns["category"] >= Category.KERNEL) & (columns["category"] <= Category.MEMSET)
        no_stream = device & (columns["stream"] == NONE)
        threads = tuple((_id_text(p), _id_text(t)) for p, t in self._threads)
        if no_stream.any():
            streams = np.array([_trailing_number(t) for _, t in threads], dtype=np.int32)
            columns["stream"][no_stream] = streams[columns["thread"][no_stream]]
        return Events(
            **columns,
            names=tuple(self._names),
            threads=threads,
            shapes=tuple(Shapes(dims=d.decode(), types=t.decode()) for d, t in self._shapes),
            collectives=self._collectives,
            copied_bytes=self._copied,
            flop=self._flop,
            memory=_memory_table(self._memory) if self._memory else None,
        )

    def notes(self) -> list[Note]:
        """What was odd in the events, one note a kind."""
        found = [Note(kind="repaired", text=f"{n:,} {kind} mended") for kind, n in self._repairs.items()]
        return found + [Note(kind="dropped", text=f"{n:,} events {kind}") for kind, n in self._odd.items()]


_COLUMNS: dict[str, Any] = {
    "ts_ns": np.int64, "dur_ns": np.int64, "category": np.int8, "name": np.int32, "thread": np.int32,
    "stream": np.int32, "device": np.int32, "correlation": np.int64, "external_id": np.int64,
    "sequence": np.int64, "forward_thread": np.int32, "shape": np.int32,
}  # fmt: skip


_SCANNED = {key.encode(): int(category) for key, category in CATEGORIES.items()}


def _place(text: bytes) -> int | str:
    return text.strip(b'"').decode(errors="replace") if text.startswith(b'"') else int(text)


def _wide(values: list[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        return np.array([v if -(2**63) <= v < 2**63 else NONE for v in values], dtype=np.int64)


def _small(values: list[int]) -> np.ndarray[Any, np.dtype[np.int32]]:
    """int32, with NONE for what does not fit: CUPTI writes an unset stream as 2**32 - 1."""
    wide = _wide(values)
    return np.where((wide > 2**31 - 1) | (wide < 0), NONE, wide).astype(np.int32)


def _collective(a: _Args) -> CollectiveArgs:
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
    )


def _memory_row(e: Any) -> tuple[int, int, int, int, int, int]:
    ts = from_texts([bytes(e.ts)]) if isinstance(e.ts, msgspec.Raw) else from_floats(np.array([e.ts]))
    a = e.args
    return int(ts[0]), a.memory_bytes, a.allocated, a.reserved, a.device_type, a.device_id


def _memory_table(rows: list[tuple[int, int, int, int, int, int]]) -> MemoryInstants:
    table = np.array(sorted(rows, key=lambda r: r[0]), dtype=np.int64)
    return MemoryInstants(
        ts_ns=table[:, 0],
        size_bytes=table[:, 1],
        allocated_bytes=table[:, 2],
        reserved_bytes=table[:, 3],
        device_type=table[:, 4].astype(np.int32),
        device=table[:, 5].astype(np.int32),
    )


def _loose_args(values: dict[str, Any]) -> _Args:
    """What can be read of the arguments, each by itself; the rest stays as if not recorded."""
    known: dict[str, Any] = {}
    for spec in _FIELDS:
        value = values.get(spec.encode_name)
        if value is None:
            continue
        try:
            if spec.type is msgspec.Raw:
                known[spec.name] = msgspec.Raw(msgspec.json.encode(value))
            else:
                known[spec.name] = msgspec.convert(value, spec.type, strict=False)
        except msgspec.ValidationError:
            continue
    return _Args(**known)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _id(value: Any) -> int | str | None:
    return value if isinstance(value, int | str) else None if value is None else str(value)


def _id_text(value: Any) -> str:
    return "" if value is None else str(value)


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _is_number(event: _ExactEvent) -> bool:
    try:
        from_text(bytes(event.ts))
    except ValueError:
        return False
    return True


def _trailing_number(text: str) -> int:
    found = re.search(r"(\d+)\s*$", text)
    return int(found[1]) if found else NONE
