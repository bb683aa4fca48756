"""An event as it stands in the text: typed structs, and how to read one whose fields have other types.

Columns that grow block by block, and the integer columns of an event's arguments.

Microseconds as the trace writes them -> integer nanoseconds, without losing a digit.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.traces.events import NONE

NO_TEXT = msgspec.Raw(b"")


class Args(msgspec.Struct, gc=False, rename={
    "external_id": "External id", "sequence": "Sequence number", "forward_thread": "Fwd thread id",
    "dims": "Input Dims", "types": "Input type", "values": "Concrete Inputs", "collective": "Collective name",
    "in_elements": "In msg nelems", "out_elements": "Out msg nelems",
    "group_name": "Process Group Name", "group_description": "Process Group Description",
    "group_size": "Group size", "group_ranks": "Process Group Ranks", "group_sequence": "Seq",
    "comms_id": "Comms Id", "label": "name", "allocated": "Total Allocated", "reserved": "Total Reserved",
    "memory_bytes": "Bytes", "device_type": "Device Type", "device_id": "Device Id", "copied": "bytes",
    "source_rank": "Src Rank", "destination_rank": "Dst Rank", "connection": "connection_id",
}):  # fmt: skip
    correlation: int = NONE
    external_id: int = NONE
    stream: int | str = NONE
    device: int = NONE
    sequence: int = NONE
    forward_thread: int = NONE
    dims: msgspec.Raw = NO_TEXT
    types: msgspec.Raw = NO_TEXT
    values: msgspec.Raw = NO_TEXT
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
    group_ranks: msgspec.Raw = NO_TEXT
    group_sequence: int | None = None
    comms_id: int | None = None
    source_rank: int | None = None
    destination_rank: int | None = None
    label: msgspec.Raw = NO_TEXT
    labels: msgspec.Raw = NO_TEXT
    allocated: int = NONE
    reserved: int = NONE
    memory_bytes: int | None = None
    device_type: int = NONE
    device_id: int = NONE
    connection: int = NONE  # what Ascend's profiler calls a correlation


class Event(msgspec.Struct, gc=False):
    """The time is text: a float cannot hold absolute unix times."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: msgspec.Raw = NO_TEXT
    dur: float | None = None
    args: Args | None = None


class LooseEvent(msgspec.Struct, gc=False):
    """As Event with every field as text, to be read one by one: for events with a type nobody expects."""

    ph: msgspec.Raw = NO_TEXT
    cat: msgspec.Raw = NO_TEXT
    name: msgspec.Raw = NO_TEXT
    pid: msgspec.Raw = NO_TEXT
    tid: msgspec.Raw = NO_TEXT
    ts: msgspec.Raw = NO_TEXT
    dur: msgspec.Raw = NO_TEXT
    args: msgspec.Raw = NO_TEXT


DECODER = msgspec.json.Decoder(list[Event])
ONE_EXACT = msgspec.json.Decoder(Event)
ONE_LOOSE = msgspec.json.Decoder(LooseEvent)
RAW_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_RAW_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_FIELDS = msgspec.structs.fields(Args)


def loosely(event: LooseEvent) -> Event:
    """Read what can be read of the event, each field by itself; the rest is as if not recorded."""
    args = Args()
    try:
        fields = _RAW_FIELDS.decode(event.args)
    except UNREADABLE:
        fields = {}
    for spec in _FIELDS:
        if spec.encode_name in fields:
            raw = fields[spec.encode_name]
            setattr(args, spec.name, raw if spec.type is msgspec.Raw else _read_value(raw, spec.type, spec.default))
    return Event(
        ph=_read_value(event.ph, str, ""), cat=_read_value(event.cat, str, ""), name=_read_value(event.name, str, ""),
        pid=_read_value(event.pid, int | str | None, None), tid=_read_value(event.tid, int | str | None, None),
        ts=event.ts, dur=_read_value(event.dur, float | None, None), args=args,
    )  # fmt: skip


def _read_value(raw: msgspec.Raw, kind: Any, otherwise: Any) -> Any:
    """The value as this type, from ``7``, ``7.0`` or ``"7"``; ``otherwise`` when it is something else."""
    if raw is NO_TEXT:
        return otherwise
    try:
        return msgspec.json.decode(raw, type=kind, strict=False)
    except UNREADABLE:
        return bytes(raw).strip(b'"').decode(errors="replace") if kind in (str, int | str | None) else otherwise


INT32_MAX = 2**31 - 1
_FIRST = 1 << 12
_GROWTH = 1.125


class GrowingColumn:
    """Values of one column in the order they come, in one array that grows in place: what is freed and taken again in
    between leaves memory in pieces."""

    def __init__(self, dtype: Any) -> None:
        self._values = np.empty(_FIRST, dtype=dtype)
        self._used = 0

    def append(self, values: NDArray[Any]) -> None:
        """Add a block's values, shape (events of the block,)."""
        end = self._used + len(values)
        if end > len(self._values):
            self._values.resize(int(end * _GROWTH), refcheck=False)
        self._values[self._used : end] = values
        self._used = end

    def joined(self) -> NDArray[Any]:
        """All values so far as one array; the column is empty afterwards."""
        values, self._values = self._values, np.empty(0, dtype=self._values.dtype)
        values.resize(self._used, refcheck=False)
        self._used = 0
        return values


def wide(values: Sequence[int]) -> NDArray[np.int64]:
    """Convert to int64, with NONE for what does not fit."""
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        return np.array([v if -(2**63) <= v < 2**63 else NONE for v in values], dtype=np.int64)


def narrow(values: NDArray[np.int64]) -> NDArray[np.int32]:
    """Convert to int32, with NONE for what does not fit: CUPTI writes an unset stream as 2**32 - 1."""
    return np.where((values > INT32_MAX) | (values < 0), NONE, values).astype(np.int32)


def snug(values: NDArray[Any], *, least: type[np.signedinteger[Any]] = np.int8) -> NDArray[Any]:
    """The same numbers in the narrowest type, from ``least`` on, that holds them: half the memory of a trace is columns."""
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    kinds: tuple[type[np.signedinteger[Any]], ...] = (np.int8, np.int16, np.int32)
    for dtype in kinds[kinds.index(least) :]:
        if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
            return values.astype(dtype, copy=False)
    return values


def as_number(value: int | str) -> int:
    """Return a number, also one written in digits as ROCm's runtime does with some; NONE for other text (a pointer)."""
    if isinstance(value, int):
        return value
    return int(value) if value.isascii() and value.isdigit() and len(value) < 19 else NONE


RANGE_US = 2.0**53
"""No time in microseconds is larger (285 years): sums of two still fit 64 bits of nanoseconds."""


def from_floats(values_us: NDArray[np.float64]) -> NDArray[np.int64]:
    """Nanoseconds of values below 2**43 in size, which tell three decimals apart; whole ones up to RANGE_US are exact too.

    Whole and fraction are scaled apart: one product of the full value would round a second time.
    Raises ValueError beyond RANGE_US and for NaN.
    """
    if not len(values_us):
        return np.empty(0, dtype=np.int64)
    if not np.abs(values_us).max() <= RANGE_US:
        raise ValueError("a time too large for 64 bits of nanoseconds")
    whole = np.floor(values_us)
    fraction = np.rint((values_us - whole) * 1000.0)
    return whole.astype(np.int64) * 1000 + fraction.astype(np.int64)


def from_texts(texts: Sequence[bytes]) -> NDArray[np.int64]:
    """Nanoseconds of decimal texts such as ``1712195495505582.988``, quoted or not.

    Raises ValueError for anything else and beyond RANGE_US.
    """
    alike = _three_decimals(texts) if len(texts) >= _WORTH_PACKING else None
    if alike is not None:
        return alike
    try:
        values = [int(t[:-4] + t[-3:]) if t[-4:-3] == b"." else _exact_ns(t) for t in texts]
    except ValueError:
        values = [_exact_ns(t) for t in texts]
    if values and max(max(values), -min(values)) > _RANGE_NS:
        raise ValueError("a time too large for 64 bits of nanoseconds")
    return np.array(values, dtype=np.int64)


_RANGE_NS = int(RANGE_US) * 1000
_WORTH_PACKING = 64
_LONGEST = 20  # characters; 10**19 still fits an unsigned 64-bit integer


def _three_decimals(texts: Sequence[bytes]) -> NDArray[np.int64] | None:
    """All texts at once when they are equally long, ``digits.ddd`` and in range; None otherwise."""
    packed = np.array(texts, dtype=np.bytes_)
    width = packed.dtype.itemsize
    if not 5 <= width <= _LONGEST:
        return None
    characters = packed.view(np.uint8).reshape(len(packed), width)
    if not (characters[:, -4] == ord(".")).all():
        return None
    digits = np.delete(characters, width - 4, axis=1) - np.uint8(ord("0"))
    if digits.max() > 9:  # a shorter text, too: it is padded with zero bytes
        return None
    powers = np.array([10**place for place in reversed(range(width - 1))], dtype=np.uint64)
    values = digits.astype(np.uint64) @ powers
    return values.astype(np.int64) if values.max() <= _RANGE_NS else None


def _exact_ns(text: bytes) -> int:
    """Return a time in microseconds as whole ns, exactly. Raises ValueError for anything else."""
    text = text.strip(b'" ')
    if text.isdigit() and len(text) < 20:
        return int(text) * 1000
    try:
        value = Decimal(text.decode("ascii"))
        if not value.is_finite() or value.adjusted() > 18:  # 1e999999999 would take all memory
            raise ValueError(f"not a time in microseconds: {text[:40]!r}")
        return int((value * 1000).to_integral_value(ROUND_HALF_EVEN))
    except (ArithmeticError, UnicodeDecodeError) as error:
        raise ValueError(f"not a number of microseconds: {text[:40]!r}") from error


DEVICE = (b"kernel", b"gpu_memcpy", b"gpu_memset", b"Kernel", b"Memcpy", b"Memset", b"mtia_ccp_events")
"""Categories of the device's events, as they stand in the text, that are read without the rest."""
