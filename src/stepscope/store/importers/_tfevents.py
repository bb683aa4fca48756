"""Scalars of TensorBoard's event files: records framed as TFRecord, each a protocol buffer ``Event``.

Only what scalars need is read: wall time, step, tag and value, plain or as a tensor of one number (docs/decisions/0012).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stepscope.core.errors import DataError

MAX_RECORD = 64 << 20
_HEAD = struct.Struct("<QI")
_TENSORS = {1: "<f", 2: "<d", 3: "<i", 9: "<q"}
"""DataType -> format of one number: float32, float64, int32, int64."""


@dataclass(frozen=True, slots=True)
class Scalar:
    wall_s: float
    step: int
    tag: str
    value: float


def scalars_of(path: Path) -> Iterator[Scalar | str]:
    """Every scalar in order; last, where the file is damaged, a sentence on what could not be read. Raises DataError."""
    try:
        with path.open("rb") as file:
            while head := file.read(_HEAD.size):
                at = file.tell() - len(head)
                body = _body(head, file.read)
                if body is None:
                    yield f"{path}: cut or damaged at byte {at}: the rest is not read"
                    return
                yield from _event(body)
    except OSError as error:
        raise DataError(f"cannot read {path}", why=error.strerror or str(error)) from error
    except (ValueError, struct.error, IndexError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not an event file of TensorBoard", why=str(error)) from error


def _body(head: bytes, read: object) -> bytes | None:
    """The record that the head announces; None where either is cut or fails its checksum."""
    if len(head) < _HEAD.size:
        return None
    length, check = _HEAD.unpack(head)
    if length > MAX_RECORD or _masked_crc(head[:8]) != check:
        return None
    body: bytes = read(length + 4)  # type: ignore[operator]
    if len(body) < length + 4 or _masked_crc(body[:length]) != struct.unpack("<I", body[length:])[0]:
        return None
    return body[:length]


def _event(data: bytes) -> Iterator[Scalar]:
    wall_s, step, summary = 0.0, 0, b""
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            (wall_s,) = struct.unpack("<d", value)
        elif number == 2 and isinstance(value, int):
            step = value
        elif number == 5 and isinstance(value, bytes):
            summary = value
    for number, value in _fields(summary):
        if number == 1 and isinstance(value, bytes):
            found = _value(value)
            if found is not None:
                yield Scalar(wall_s, step, *found)


def _value(data: bytes) -> tuple[str, float] | None:
    """(tag, number) of a Summary.Value; None for images, histograms and texts."""
    tag, number = "", None
    for field, value in _fields(data):
        if field == 1 and isinstance(value, bytes):
            tag = value.decode()
        elif field == 2 and isinstance(value, bytes) and len(value) == 4:
            (number,) = struct.unpack("<f", value)
        elif field == 8 and isinstance(value, bytes):
            number = _tensor(value)
    return None if number is None else (tag, number)


def _tensor(data: bytes) -> float | None:
    """The only number of a TensorProto; None for anything larger, or of another type."""
    kind, content = 0, b""
    for field, value in _fields(data):
        if field == 1 and isinstance(value, int):
            kind = value
        elif field == 2 and isinstance(value, bytes) and value:
            return None if any(number == 2 for number, _ in _fields(value)) else _number(kind, content)
        elif field in (4, 5, 6) and isinstance(value, bytes):
            content = value
    return _number(kind, content)


def _number(kind: int, content: bytes) -> float | None:
    form = _TENSORS.get(kind)
    return float(struct.unpack(form, content)[0]) if form and struct.calcsize(form) == len(content) else None


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of every field of a message: varints as int, the others as their bytes. Raises ValueError."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind not in (1, 2, 5):
            raise ValueError(f"wire type {kind} in a protocol buffer")
        size, at = _varint(data, at) if kind == 2 else (8 if kind == 1 else 4, at)
        if at + size > len(data):
            raise ValueError("a field is longer than its message")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """(number, where it ends); negative ones as the two's complement of 64 bits that they are."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return (value - (1 << 64) if value >> 63 else value), at
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _crc_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


_CRC = _crc_table()


def _masked_crc(data: bytes) -> int:
    """CRC-32C as TFRecord stores it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
