"""One large trace read by several processes: each takes stretches of its text, cut where Kineto ends an event.

Only for what needs no second look: the profiler's own layout, not packed, every event as expected. Whatever else turns
up, the file is read again from its start by one process, which repairs it and says what was wrong.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from stepscope.traces.decode import ColumnBuilder, DecodedPart
from stepscope.traces.envelope import EventStream, NotATrace
from stepscope.traces.source import CHUNK_BYTES, KINETO_CUT, ByteSource, is_packed
from stepscope.traces.wire import UNREADABLE, device_rows

PART_BYTES = 32 << 20
"""Text of one stretch: its columns, about a tenth of that, are what waits to be merged."""
WORTH_BYTES = 64 << 20
"""Smaller files are read sooner by one process: the second one takes 50 ms to come and to hand over."""

_WINDOW = 1 << 20
_EVENT_END, _NEXT_EVENT = 4, 6  # within KINETO_CUT
_WAITING = 2  # stretches a process that are read ahead of what is merged


def cuts(path: Path, *, part_bytes: int = PART_BYTES) -> list[tuple[int, int]]:
    """[start, end) of stretches of whole events, the first event to nearly the last; empty where it cannot be cut."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if is_packed(file.read(4)):
            return []
        stream = EventStream(ByteSource(path))
        try:
            next(iter(stream), None)
        except NotATrace:
            return []
        if not stream.kineto:
            return []
        begin = stream.offset
        found = []
        while begin + part_bytes < size:
            file.seek(begin + part_bytes)
            at = file.read(_WINDOW).find(KINETO_CUT)
            if at < 0:
                break
            end = begin + part_bytes + at
            found.append((begin, end + _EVENT_END))
            begin = end + _NEXT_EVENT
        return found


def read_parts(
    path: Path,
    builder: ColumnBuilder,
    *,
    device_only: bool,
    processes: int,
    advanced: Callable[[int], None],
    part_bytes: int = PART_BYTES,
) -> tuple[int, int] | None:
    """Add the events of all stretches to the builder, which is empty, and say which bytes they took.

    ``advanced`` is told up to where, stretch by stretch.
    None, with the builder in any state, where one process has to read the file.
    """
    from concurrent.futures.process import BrokenProcessPool

    from stepscope.core.pool import side_by_side

    stretches = cuts(path, part_bytes=part_bytes)
    if len(stretches) < processes:
        return None
    coming, done = deque(stretches), 0
    with side_by_side(processes) as pool:
        waiting = deque(pool.submit(read_part, path, *coming.popleft(), device_only) for _ in range(processes))
        while waiting:
            while coming and len(waiting) < _WAITING * processes:
                waiting.append(pool.submit(read_part, path, *coming.popleft(), device_only))
            try:
                part = waiting.popleft().result()
            except BrokenProcessPool:
                return None
            if part is None:
                pool.shutdown(cancel_futures=True)
                return None
            builder.merge(part)
            done += 1
            advanced(stretches[done - 1][1])
    return stretches[0][0], stretches[-1][1] + 1  # with the comma


def read_part(path: Path, start: int, end: int, device_only: bool) -> DecodedPart | None:
    """The events of one stretch; None where they need a second look. Runs in any process."""
    import gc

    gc.disable()  # as in load_file; this process ends with its work
    builder = ColumnBuilder(path)
    try:
        for block in _blocks(path, start, end):
            if device_only:
                rows = device_rows(block)
                if rows is None or not builder.add_device_rows(rows):
                    return None
            else:
                builder.add_clean(block)
    except (OSError, MemoryError, *UNREADABLE):
        return None
    return builder.packed()


def _blocks(path: Path, start: int, end: int) -> Iterator[bytes]:
    """Whole events at a time, as EventStream yields them."""
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        left, rest = end - start, b""
        while left > 0:
            chunk = file.read(min(CHUNK_BYTES, left))
            if not chunk:
                raise OSError("the file has become shorter")
            left -= len(chunk)
            buffer = rest + chunk
            cut = buffer.rfind(KINETO_CUT) if left else -1
            if left and cut < 0:
                rest = buffer
                continue
            yield buffer[: cut + _EVENT_END] if left else buffer
            rest = buffer[cut + _NEXT_EVENT :]
