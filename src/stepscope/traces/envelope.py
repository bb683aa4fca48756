"""Cutting a stream of trace text at event boundaries, so that a file of any size is decoded piece by piece.

A trace is ``{header, "traceEvents": [events], tail}`` or a bare array of events. Kineto's own layout puts every
event's braces at two spaces, so a cut is one ``rfind``; re-dumped files (indented, compact) are cut at the last
``}, {`` that leaves whole events before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from stepscope.core.errors import DataError
from stepscope.traces.events import Note
from stepscope.traces.repair import is_valid, repaired
from stepscope.traces.source import ByteSource

KINETO_CUT = b"\n  },\n  {"

_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_KINETO_START = re.compile(rb'\s*\n  \{\n    "')
_BETWEEN = re.compile(rb"\}\s*,\s*\Z")
_ARRAY_END = re.compile(rb"\}\s*\]")
_SPACE = b" \t\r\n"
_TRIES = 64
_RAW_LIST = msgspec.json.Decoder(list[msgspec.Raw])


class NotATrace(Exception):  # noqa: N818 - an answer, not a failure
    """The file is JSON or text without trace events."""


class EventStream:
    """The events of one file as blocks of JSON text: each block is ``{...}, {...}`` without the brackets.

    After iteration ``header`` holds everything beside the events, ``notes`` what was repaired or is missing.
    ``kineto`` tells the profiler's own layout. ``offset`` is where the current block starts in the text.
    Raises NotATrace when no events array begins within ``header_limit`` bytes, DataError for what cannot be read.
    """

    def __init__(self, source: ByteSource, *, header_limit: int | None = None) -> None:
        self.source = source
        self.header: dict[str, Any] = {}
        self.kineto = False
        self.offset = 0
        self.notes: list[Note] = []
        self._limit = header_limit
        self._chunks = iter(source)
        self._bare = False
        self._head_text = b""

    def __iter__(self) -> Iterator[bytes]:
        buffer = self._read_header()
        starts = buffer.lstrip(_SPACE)
        if starts.startswith(b"]"):
            self._read_tail(starts[1:] + b"".join(self._chunks))
            return
        while len(buffer) < 64 and (chunk := next(self._chunks, None)):
            buffer += chunk
        self.kineto = _KINETO_START.match(buffer) is not None
        for chunk in self._chunks:
            cut, rest = self._cut(buffer)
            if cut:
                yield buffer[:cut]
                self.offset += rest
                buffer = buffer[rest:]
            buffer += chunk
        yield from self._finish(buffer)

    def _read_header(self) -> bytes:
        """Read up to the events array; what follows its bracket is returned."""
        text = b""
        searched = 0
        for chunk in self._chunks:
            text += chunk
            if searched == 0 and text.lstrip(b"\xef\xbb\xbf" + _SPACE).startswith(b"["):
                self._bare = True
                start = text.index(b"[") + 1
                self.offset = start
                if not text[start:].lstrip(_SPACE).startswith((b"{", b"]", b"")):
                    raise NotATrace("an array of something else than events")
                return text[start:]
            found = _EVENTS_KEY.search(text, max(0, searched - 64))
            if found:
                self._head_text = text[: found.start()]
                self.offset = found.end()
                return text[found.end() :]
            searched = len(text)
            if self._limit is not None and searched > self._limit:
                break
        raise NotATrace('no "traceEvents" in it')

    def _cut(self, buffer: bytes) -> tuple[int, int]:
        """Where the last whole event of the buffer ends, and where the next one begins; (0, 0) if nowhere."""
        if self.kineto:
            found = buffer.rfind(KINETO_CUT)
            return (found + 4, found + 6) if found >= 0 else (0, 0)
        position = len(buffer)
        for _ in range(_TRIES):
            position = buffer.rfind(b"{", 0, position)
            if position <= 0:
                return 0, 0
            between = _BETWEEN.search(buffer, max(0, position - 256), position)
            if between and is_valid(buffer[: between.start() + 1]):
                return between.start() + 1, position
        return 0, 0

    def _finish(self, buffer: bytes) -> Iterator[bytes]:
        """The rest of the stream: last events, end of the array, tail."""
        if not self.source.notes:
            if self.kineto:
                cut, rest = self._cut(buffer)
                if cut:
                    yield buffer[:cut]
                    self.offset += rest
                    buffer = buffer[rest:]
            for tries, end in enumerate(_ARRAY_END.finditer(buffer)):
                if tries >= _TRIES:
                    break
                last = buffer[: end.start() + 1]
                if is_valid(last) or (self.kineto and is_valid(repaired(last).text)):
                    yield last
                    self._read_tail(buffer[end.end() :])
                    return
        yield from self._broken_tail(buffer)

    def _broken_tail(self, buffer: bytes) -> Iterator[bytes]:
        """A file that stops in the middle of an event, as a killed profiler leaves it."""
        cut, rest = self._cut(buffer)
        whole = buffer.rstrip(_SPACE + b",")
        if is_valid(whole):
            cut, rest = len(whole), len(buffer)
        if cut:
            yield buffer[:cut]
        lost = len(buffer) - rest
        if not cut and not self.kineto and len(buffer) > self.source.chunk_bytes:
            raise DataError(
                f"{self.source.path}: not valid JSON after byte {self.offset:,} of its text",
                why=_reason(buffer),
                fix="export the trace again; a JSON checker shows the place",
            )
        self.notes.append(
            Note(kind="truncated", text=f"the file stops inside its list of events; {lost:,} bytes are lost")
        )
        self._read_tail(b"")

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
            except msgspec.DecodeError:
                continue
            self.header = decoded if isinstance(decoded, dict) else {}
            if candidate is not text:
                self.notes.append(Note(kind="repaired", text="the text around the events was not valid JSON"))
            return
        self.notes.append(
            Note(kind="dropped", text="the header of the file cannot be read: rank and groups are unknown")
        )


def _reason(block: bytes) -> str:
    try:
        _RAW_LIST.decode(b"[" + block + b"]")
    except msgspec.DecodeError as error:
        return str(error)
    return "no event boundary was found"
