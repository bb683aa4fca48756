"""Cutting a stream of trace text at event boundaries, so that a file of any size is decoded piece by piece.

A trace is ``{header, "traceEvents": [events], tail}`` or a bare array of events. Kineto's own layout puts every
event's braces at two spaces, so a cut is one ``rfind``; re-dumped files (indented, compact) are cut at the last
``}, {`` that leaves whole events before it.

What a trace file says beside its events -> TraceMeta.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from stepscope.core.errors import DataError
from stepscope.traces.events import Note, ProcessGroup, TraceMeta
from stepscope.traces.source import KINETO_CUT, ByteSource, is_valid, repaired, why_invalid

MAX_HEADER_BYTES = 256 << 20
"""No trace says this much before its first event: what does is something else."""
MAX_UNCUT_BYTES = 64 << 20
"""No event is as long as this: text without a boundary in it is damaged."""

_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_KINETO_START = re.compile(rb'\s*\n  \{\n    "')
_BETWEEN = re.compile(rb"\}\s*,\s*\Z")
_ARRAY_END = re.compile(rb"\}\s*\]")
_EVENT_KEY = re.compile(rb'"(?:ph|ts)"\s*:')
# Strings are matched whole, so that the brackets in them do not count.
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)
_BOM = b"\xef\xbb\xbf"
_SPACE = b" \t\r\n"
_TRIES = 64
_NEVER = 1 << 62
_LOOKED_AT = 1 << 16


MERGED_KEY = "stepscope.merged"
"""In the header of a file that `trace --merge` wrote."""

MERGED = "stepscope merged it from several ranks' traces; read those"


class NotATrace(Exception):  # noqa: N818 - an answer, not a failure
    """The file is JSON or text without trace events."""


class EventStream:
    """The events of one file as blocks of JSON text: each block is ``{...}, {...}`` without the brackets.

    After iteration ``header`` holds everything beside the events, ``notes`` what was repaired or is missing.
    ``kineto`` tells the profiler's own layout. ``offset`` is where the current block starts in the text.
    Raises NotATrace when no events array begins within ``header_limit`` bytes and for a merged timeline, DataError for
    what cannot be read.
    """

    def __init__(self, source: ByteSource, *, header_limit: int | None = None) -> None:
        self.source = source
        self.header: dict[str, Any] = {}
        self.kineto = False
        self.offset = 0
        self.notes: list[Note] = []
        self._limit = MAX_HEADER_BYTES if header_limit is None else header_limit
        self._chunks = iter(source)
        self._bare = False
        self._head_text = b""
        self._next_try = 0  # no cut is looked for in less text

    def __iter__(self) -> Iterator[bytes]:
        buffer = self._begun(self._read_header(), 64)
        starts = buffer.lstrip(_SPACE)
        if starts.startswith(b"]"):
            self._read_tail(starts[1:] + b"".join(self._chunks))
            return
        self.kineto = _KINETO_START.match(buffer) is not None
        for chunk in self._chunks:
            cut, rest = self._cut(buffer)
            if cut:
                yield buffer[:cut]
                self.offset += rest
                buffer = buffer[rest:]
            elif len(buffer) > MAX_UNCUT_BYTES and not self._holds_end(buffer):
                raise self._damaged(buffer)
            buffer += chunk
        yield from self._finish(buffer)

    def _begun(self, text: bytes, least: int) -> bytes:
        """Read on from ``text`` until it holds ``least`` bytes besides leading blanks; long blanks are passed over."""
        while len(text.lstrip(_SPACE)) < least and (chunk := next(self._chunks, None)):
            kept = text if text.strip(_SPACE) else text[-64:]
            self.offset += len(text) - len(kept)
            text = kept + chunk
        return text

    def _read_header(self) -> bytes:
        """Read up to the events array; what follows its bracket is returned."""
        parts: list[bytes] = []
        size = 0
        passed = 0  # blanks left out at the ends of chunks, so that the key's parts are near each other
        end = b""  # of what was read so far, where the key may have begun
        for chunk in self._chunks:
            if not size:
                chunk = chunk.removeprefix(_BOM).lstrip(_SPACE)
                if chunk.startswith(b"["):
                    return self._read_bare(chunk)
                self.offset = self.source.bytes_read - len(chunk)
            before, chunk = len(chunk), _squeezed_blanks(chunk)
            passed += before - len(chunk)
            parts.append(chunk)
            size += len(chunk)
            match = _EVENTS_KEY.search(end + chunk)
            if match:
                text = b"".join(parts)
                before = size - len(end) - len(chunk)
                self._head_text = text[: before + match.start()]
                self.offset += before + match.end() + passed
                if f'"{MERGED_KEY}"'.encode() in self._head_text:
                    raise NotATrace(MERGED)
                return text[before + match.end() :]
            end = (end + chunk)[-256:]
            if size > self._limit:
                break
        if self.source.broke_off:
            raise DataError(
                f"{self.source.path}: truncated before its first event",
                why=f"the compressed data ends after {size:,} bytes of text",
                fix="copy or export the file again",
            )
        from stepscope.traces.other_files import other_file  # only a refusal needs it

        raise NotATrace(other_file(b"".join(parts)[:_LOOKED_AT]) or 'no "traceEvents" in it')

    def _read_bare(self, text: bytes) -> bytes:
        """Return the inside of an array of events; any other array is no trace."""
        self._bare = True
        self.offset = self.source.bytes_read - len(text) + 1
        text = self._begun(text[1:], 4096)
        starts = text.lstrip(_SPACE)
        if starts.startswith(b"]") or (starts.startswith(b"{") and _EVENT_KEY.search(starts, 0, 1 << 16)):
            return text
        from stepscope.traces.other_files import other_file  # only a refusal needs it

        raise NotATrace(other_file(b"[" + starts[:_LOOKED_AT]) or "an array of other values than events")

    def _cut(self, buffer: bytes) -> tuple[int, int]:
        """Return where the last whole event of the buffer ends and where the next one begins; (0, 0) if nowhere."""
        if len(buffer) < self._next_try:
            return 0, 0
        if self.kineto:
            at = buffer.rfind(KINETO_CUT)
            return (at + 4, at + 6) if at >= 0 else (0, 0)
        position = len(buffer)
        for _ in range(_TRIES):
            position = buffer.rfind(b"{", 0, position)
            if position <= 0:
                break
            between = _BETWEEN.search(buffer, max(0, position - 256), position)
            if between and len(buffer) >= self._next_try and self._is_whole(buffer[: between.start() + 1], buffer):
                self._next_try = 0
                return between.start() + 1, position
        # Or a long stretch without a boundary is searched again and again.
        self._next_try = max(self._next_try, 2 * len(buffer))
        return 0, 0

    def _is_whole(self, before: bytes, buffer: bytes) -> bool:
        """Whether this beginning of the buffer is whole events. Raises DataError when it can never be."""
        problem = why_invalid(before)
        if problem is None:
            return True
        if problem.cut_short:  # inside a string, or inside lists and objects of one event
            return False
        if self._holds_end(buffer):
            return False
        mended = why_invalid(repaired(before).text)
        if mended is not None and not mended.cut_short:
            raise self._damaged(buffer)
        return mended is None

    def _finish(self, buffer: bytes) -> Iterator[bytes]:
        """Yield the rest of the stream: last events, end of the array, tail."""
        if self.kineto:
            cut, rest = self._cut(buffer)
            if cut:
                yield buffer[:cut]
                self.offset += rest
                buffer = buffer[rest:]
        self._next_try = 0
        end = self._array_end(buffer)
        if end is None:
            yield from self._broken_tail(buffer)
            return
        last, rest = end
        yield buffer[:last]
        self._read_tail(buffer[rest:])

    def _array_end(self, buffer: bytes) -> tuple[int, int] | None:
        """Where the last event ends, and what follows the array's bracket; None when there is no end."""
        for _, match in zip(range(8), _ARRAY_END.finditer(buffer), strict=False):
            last = match.start() + 1
            if _can_be_read(buffer[:last]):
                return last, match.end()
        depth = 0
        for bracket in _BRACKETS.finditer(buffer):
            first = buffer[bracket.start()]
            if first in b"[{":
                depth += 1
            elif first in b"]}":
                depth -= 1
                if depth < 0:
                    end = bracket.start()
                    return (end, end + 1) if _can_be_read(buffer[:end]) else None
        return None

    def _holds_end(self, buffer: bytes) -> bool:
        """Whether the array ends in this buffer; what follows is tail then, and is cut no more."""
        if self._next_try < _NEVER and self._array_end(buffer) is not None:
            self._next_try = _NEVER
        return self._next_try == _NEVER

    def _broken_tail(self, buffer: bytes) -> Iterator[bytes]:
        """Yield the last whole events of a file that stops in the middle of one, as a killed profiler leaves it."""
        whole = buffer.rstrip(_SPACE + b",")
        if is_valid(whole):
            cut, rest = len(whole), len(buffer)
        else:
            cut, rest = self._cut(buffer)
        problem = why_invalid(repaired(buffer[rest:]).text)
        if problem is not None and not problem.cut_short:
            raise self._damaged(buffer[rest:], skipped=rest)
        if cut:
            yield buffer[:cut]
        text = "the file stops inside its list of events; how many are lost behind that place is unknown"
        self.notes.append(Note(kind="truncated", text=text))
        self._read_tail(b"")

    def _damaged(self, text: bytes, *, skipped: int = 0) -> DataError:
        problem = why_invalid(text)
        place = self.offset + skipped + (problem.position if problem else 0)
        return DataError(
            f"{self.source.path}: not valid JSON at byte {place:,} of its text",
            why=problem.text if problem and not problem.cut_short else "no boundary between events was found",
            fix="export the trace again, or repair it at that place",
        )

    def _read_tail(self, tail: bytes) -> None:
        if self._bare:
            return
        head = self._head_text.rstrip(_SPACE)
        tail = tail.strip(_SPACE)
        if tail.startswith(b","):
            separator = b"" if head.endswith((b",", b"{")) else b","
            text = head + separator + tail[1:]
        else:
            text = head.removesuffix(b",") + b"}"
        for candidate in (text, repaired(text).text, head.removesuffix(b",") + b"}"):
            try:
                decoded = msgspec.json.decode(candidate)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            self.header = decoded if isinstance(decoded, dict) else {}
            if candidate is not text:
                self.notes.append(Note(kind="repaired", text="the text around the events was not valid JSON"))
            return
        self.notes.append(
            Note(kind="dropped", text="the header of the file cannot be read: rank and groups are unknown")
        )


def _squeezed_blanks(chunk: bytes) -> bytes:
    """Replace many blanks at a chunk's ends by one; a chunk of nothing but blanks becomes empty."""
    inner = chunk.strip(_SPACE)
    if len(chunk) - len(inner) < 128:
        return chunk
    return b" " + inner + b" " if inner else b""


def _can_be_read(events: bytes) -> bool:
    return is_valid(events) or is_valid(repaired(events).text)


_OWN = "stepscope."

_DEVICE = re.compile(
    r"(?<![a-z])(mtia|hpu|npu|tpu|xpu|gcu|mlu|musa|privateuse|ascend|neuron|gpu|cuda|hip|device|hardware|accelerator)",
    re.IGNORECASE,
)
"""In a category's or a process's name: MTIA, Gaudi (hpu), Ascend (npu), XPU, custom backends (privateuse1), and the like."""

ASCEND = "Ascend Hardware"
"""What Ascend's profiler calls the process of the device."""

MTIA_OTHERS = frozenset({"dma_request", "event_record", "event_wait"})
"""Names of MTIA's spans that are no kernels: copies, and waits."""

PROFILER_OWN = frozenset({"Trace", "cpu_instant_event", "external_correlation", "fwdbwd", "ac2g", "async_cpu_to_gpu"})
"""Categories of the profiler itself."""


def meta_from(header: dict[str, Any]) -> TraceMeta:
    """Read the header leniently: a field of an unexpected type counts as not recorded."""
    distributed = header.get("distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    devices = [d for d in _as_list(header.get("deviceProperties")) if isinstance(d, dict)]
    memory = _as_integer(devices[0].get("totalGlobalMem")) if devices else None
    return TraceMeta(
        rank=_recorded_or_own(_as_integer(distributed.get("rank")), _as_integer(header.get(f"{_OWN}rank"))),
        world_size=_recorded_or_own(
            _as_integer(distributed.get("world_size")), _as_integer(header.get(f"{_OWN}world_size"))
        ),
        backend=_as_string(distributed.get("backend")),
        host=_as_string(header.get("host_name")),
        groups=tuple(_process_groups(_as_list(distributed.get("pg_config")))),
        device_names=tuple(str(d["name"]) for d in devices if d.get("name")),
        device_memory_bytes=memory,
        base_time_ns=_as_integer(header.get("baseTimeNanoseconds")),
        stepscope={k.removeprefix(_OWN): _own_metadata(v) for k, v in header.items() if k.startswith(_OWN)},
    )


def unread_categories(foreign: Mapping[tuple[str, str], int], labels: Mapping[str, str]) -> dict[str, int]:
    """Spans by category, of unknown categories that a device's name or its process's is in.

    ``foreign``: spans by (category, process id); ``labels``: what processes are called.
    """
    counts: Counter[str] = Counter()
    for (category, process), spans in foreign.items():
        label = labels.get(process, "")
        if category not in PROFILER_OWN and (_DEVICE.search(category) or _DEVICE.search(label)):
            counts[category or f"no category, process {label!r}"] += spans
    return dict(counts.most_common())


def _recorded_or_own(recorded: int | None, own: int | None) -> int | None:
    """Return what the profiler recorded (it does where torch.distributed is initialised), else what our own metadata say."""
    return own if recorded is None else recorded


def _process_groups(entries: list[Any]) -> list[ProcessGroup]:
    groups = []
    for entry in entries:
        if not isinstance(entry, dict):
            continue
        ranks = [r for r in _as_list(entry.get("ranks")) if isinstance(r, int)]
        groups.append(
            ProcessGroup(
                name=str(entry.get("pg_name", "")),
                description=str(entry.get("pg_desc", "")),
                size=_as_integer(entry.get("pg_size")),
                ranks=tuple(ranks),
                backend=str(entry.get("backend_config", "")),
            )
        )
    return groups


def _own_metadata(value: Any) -> object:
    """Decode our own metadata, which is JSON inside a JSON string."""
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return value


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _as_integer(value: Any) -> int | None:
    """Return a whole number, whether written as such, as a float or as a text; None for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        return int(value)
    return None


def _as_string(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
