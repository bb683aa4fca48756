"""Events of one rank written by hand: ``trace(op("aten::mm", 0, 10), kernel("gemm", 4, 9, by=launch))``.

Times are [start, end) in ns. Each maker returns a row; ``trace`` makes a RankTrace of them, in the order given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stepscope.traces.events import NONE, Category, Events, MemoryInstants, RankTrace, Shapes, TraceMeta


@dataclass(frozen=True, kw_only=True)
class Row:
    name: str
    category: Category
    start: int
    end: int
    thread: str = "main"
    stream: int = NONE
    device: int = NONE
    correlation: int = NONE
    external_id: int = NONE
    forward_thread: int = NONE
    shape: Shapes | None = None
    size_bytes: int | None = None
    flop: int | None = None
    values: str | None = None
    sequence: int = NONE


def op(
    name: str, start: int, end: int, *, thread: str = "main", dims: str | None = None, types: str = "[]",
    external_id: int = NONE, forward_thread: int = NONE, flop: int | None = None,
    values: str | None = None, sequence: int = NONE,
) -> Row:  # fmt: skip
    shape = None if dims is None else Shapes(dims=dims, types=types)
    return Row(
        name=name, category=Category.CPU_OP, start=start, end=end, thread=thread, shape=shape,
        external_id=external_id, forward_thread=forward_thread, flop=flop, values=values, sequence=sequence,
    )  # fmt: skip


def call(
    name: str, start: int, end: int, *, correlation: int = NONE, thread: str = "main", external_id: int = NONE
) -> Row:
    return Row(
        name=name, category=Category.RUNTIME, start=start, end=end, thread=thread, correlation=correlation,
        external_id=external_id,
    )  # fmt: skip


def launch(start: int, end: int, correlation: int, *, thread: str = "main", external_id: int = NONE) -> Row:
    return call("cudaLaunchKernel", start, end, correlation=correlation, thread=thread, external_id=external_id)


def kernel(name: str, start: int, end: int, correlation: int = NONE, *, stream: int = 7) -> Row:
    return Row(
        name=name, category=Category.KERNEL, start=start, end=end, thread=f"stream {stream}", stream=stream,
        device=0, correlation=correlation,
    )  # fmt: skip


def copy(
    name: str,
    start: int,
    end: int,
    correlation: int = NONE,
    *,
    stream: int = 7,
    size_bytes: int | None = None,
) -> Row:
    return Row(
        name=name, category=Category.MEMCPY, start=start, end=end, thread=f"stream {stream}", stream=stream,
        device=0, correlation=correlation, size_bytes=size_bytes,
    )  # fmt: skip


def mark(name: str, start: int, end: int, *, thread: str = "main") -> Row:
    return Row(name=name, category=Category.USER_ANNOTATION, start=start, end=end, thread=thread)


def device_mark(name: str, start: int, end: int) -> Row:
    return Row(name=name, category=Category.GPU_ANNOTATION, start=start, end=end, thread="stream 7", stream=7)


def events(rows: Sequence[Row], *, memory: MemoryInstants | None = None) -> Events:
    names = list(dict.fromkeys(r.name for r in rows))
    threads = list(dict.fromkeys(r.thread for r in rows))
    shapes = list(dict.fromkeys(r.shape for r in rows if r.shape is not None))

    def wide(values: Sequence[int]) -> np.ndarray:
        return np.array(values, dtype=np.int64)

    def small(values: Sequence[int]) -> np.ndarray:
        return np.array(values, dtype=np.int32)

    return Events(
        ts_ns=wide([r.start for r in rows]),
        dur_ns=wide([r.end - r.start for r in rows]),
        category=np.array([int(r.category) for r in rows], dtype=np.int8),
        name=small([names.index(r.name) for r in rows]),
        thread=small([threads.index(r.thread) for r in rows]),
        stream=small([r.stream for r in rows]),
        device=small([r.device for r in rows]),
        correlation=wide([r.correlation for r in rows]),
        external_id=wide([r.external_id for r in rows]),
        sequence=wide([r.sequence for r in rows]),
        forward_thread=small([r.forward_thread for r in rows]),
        shape=small([NONE if r.shape is None else shapes.index(r.shape) for r in rows]),
        names=tuple(names),
        threads=tuple(("1", t) for t in threads),
        shapes=tuple(shapes),
        copied_bytes={i: r.size_bytes for i, r in enumerate(rows) if r.size_bytes is not None},
        flop={i: r.flop for i, r in enumerate(rows) if r.flop is not None},
        values={i: r.values for i, r in enumerate(rows) if r.values is not None},
        memory=memory,
    )


def trace(
    *rows: Row, rank: int = 0, memory: MemoryInstants | None = None, device_names: tuple[str, ...] = ()
) -> RankTrace:
    return RankTrace(
        rank=rank,
        path=Path("hand.json"),
        size_bytes=0,
        events=events(rows, memory=memory),
        meta=TraceMeta(rank=rank, device_names=device_names),
    )
