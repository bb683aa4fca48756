"""A block of plain event text -> columns at the speed of memory, where the compiled scanner is installed.

It reads what decode.py reads, refuses every block with a surprise in it, and then decode.py takes it: the two give the
same columns. msgspec's decoding alone takes 0.8 us an event and making columns of its objects 1.8 us more; polars,
pyarrow and simdjson were slower than msgspec on these texts (docs/decisions/0023-a-compiled-scanner.md).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import record
from stepscope.traces.wire import DEVICE, Args, narrow

LINKS = ("correlation", "external_id", "stream", "device", "sequence", "forward_thread")
"""Fields of ``wire.Args`` that become columns of numbers."""
_TEXTS = ("dims", "types")
_OTHER_KEY = len(LINKS) + len(_TEXTS)


_UNKNOWN = (b"gpu_mem", b"Mem", b"concurrent_kernel")
"""How other categories begin that may be the device's: a block with one is decoded."""


def compiled() -> ModuleType | None:
    """The compiled module; None where it was not built."""
    try:
        from stepscope.traces import _event_scan
    except ImportError:
        return None
    return _event_scan


@record
class ScannedBlock:
    """Spans of one block. columns: as decode.py's, but for the category. category: index into ``categories``. special:
    spans with arguments that are no columns. others: texts of events that are neither spans nor flows."""

    columns: dict[str, NDArray[Any]]
    category: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    special: NDArray[np.bool_]
    others: list[bytes]


class BlockScanner:
    """Scans the blocks of one file; ``code`` gives the code of a name, ``place`` of a thread, ``shape`` of shapes."""

    def __init__(
        self,
        *,
        code: Callable[[str], int],
        place: Callable[[tuple[Any, Any]], int],
        shape: Callable[[tuple[bytes, bytes]], int],
    ) -> None:
        self._module = compiled()
        self._scanner = self._module.scanner(_argument_keys(), _text_bits()) if self._module else None
        self._code, self._place, self._shape = code, place, shape
        self._names = np.empty(0, dtype=np.int32)
        self._threads = np.empty(0, dtype=np.int32)
        self._shapes = np.full(1, -1, dtype=np.int32)  # the last one is that of no shape
        self.categories: list[str] = []

    def scan(self, block: bytes, *, device_only: bool = False) -> ScannedBlock | None:
        """The block's events; None where it has to be decoded. device_only: those of the device and the profiler's steps,
        of which time, category, name and place alone are known."""
        if self._module is None:
            return None
        if device_only:
            scanned = self._module.scan_device(self._scanner, block, DEVICE, _UNKNOWN)
        else:
            scanned = self._module.scan(self._scanner, block)
        if scanned is None:
            return None
        columns, categories, names, threads, shapes, others = scanned
        ts, dur, category, name, thread, shape, *links, starts, ends, special = (
            np.frombuffer(column, dtype=np.int64) for column in columns
        )
        self.categories += map(_decoded_text, categories)
        self._names = _appended(self._names, [self._code(_decoded_text(text)) for text in names])
        self._threads = _appended(
            self._threads, [self._place((_decoded_id(pid), _decoded_id(tid))) for pid, tid in threads]
        )
        self._shapes = np.append(_appended(self._shapes[:-1], list(map(self._shape, shapes))), self._shapes[-1:])
        values: dict[str, NDArray[Any]] = dict(zip(LINKS, links, strict=True))
        for key in ("stream", "device", "forward_thread"):
            values[key] = narrow(values[key])
        return ScannedBlock(
            columns={
                "ts_ns": ts, "dur_ns": dur, "name": self._names[name], "thread": self._threads[thread],
                "shape": self._shapes[shape], **values,
            },
            category=category, starts=starts, ends=ends, special=special != 0, others=others,
        )  # fmt: skip


def _appended(values: NDArray[np.int32], more: list[int]) -> NDArray[np.int32]:
    return np.append(values, np.array(more, dtype=np.int32)) if more else values


def _decoded_text(raw: bytes) -> str:
    text: str = msgspec.json.decode(b'"' + raw + b'"') if b"\\" in raw else raw.decode()
    return text


def _decoded_id(raw: bytes) -> int | str | None:
    decoded: int | str | None = msgspec.json.decode(raw) if raw else None
    return decoded


@cache
def _argument_keys() -> list[tuple[bytes, int]]:
    """What the arguments that decode.py reads are called in the text, and what becomes of each."""
    names = {spec.name: spec.encode_name.encode() for spec in msgspec.structs.fields(Args)}
    first = LINKS + _TEXTS
    others = [s.name for s in msgspec.structs.fields(Args) if s.name not in first and s.type is not msgspec.Raw]
    keys = [(names[key], i) for i, key in enumerate(first)] + [(names[key], _OTHER_KEY) for key in others]
    return sorted(keys, key=lambda key: len(key[0]))


@cache
def _text_bits() -> int:
    """Return a mask in which bit i says that link i may be text."""
    kinds = {spec.name: spec.type for spec in msgspec.structs.fields(Args)}
    return sum(1 << i for i, key in enumerate(LINKS) if kinds[key] is not int)
