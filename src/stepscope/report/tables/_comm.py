"""What the tables of collectives share: figures as nccl-tests prints them, and rows by what they have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from stepscope.core.units import format_size
from stepscope.records.comm import CommRow
from stepscope.report.tables._common import Column, Tone, Value, unknown
from stepscope.results.comm_labels import (
    device_label,
    env_label,
    flight_label,
    network_label,
    op_label,
    origins,
    pacing_label,
    place_label,
    ranks_label,
    size_of,
)

Head = tuple[tuple[Column, Callable[[CommRow], Value]], ...]


def name(text: str, *, tone: Tone = "plain") -> Value:
    return Value(text=text, raw=text, tone=tone)


def number(value: int | None) -> Value:
    return unknown() if value is None else Value(text=str(value), raw=value)


def microseconds(ns: float | None) -> Value:
    """Microseconds with nccl-tests' number of decimals; raw in ns."""
    if ns is None:
        return unknown()
    us = ns / 1e3
    return Value(text=f"{us:.0f}" if us >= 10_000 else f"{us:.1f}" if us >= 100 else f"{us:.2f}", raw=ns)


def gigabytes(bytes_per_s: float | None) -> Value:
    """GB/s, GB = 1e9: two decimals as in nccl-tests, below 1 as many as show two digits."""
    if bytes_per_s is None:
        return unknown()
    return Value(text=decimal(bytes_per_s / 1e9), raw=bytes_per_s)


def decimal(value: float) -> str:
    """``230.29``, ``0.124``, ``0.0031``."""
    if value >= 1 or value <= 0:
        return f"{value:.2f}"
    places = next((n for n in range(3, 9) if round(value * 10**n) >= 10), 9)
    return f"{value:.{places}f}"


def share(fraction: float | None, *, tone: Tone = "plain") -> Value:
    """A fraction in percent."""
    if fraction is None:
        return unknown()
    text = f"{fraction:.1%}" if abs(fraction) < 0.0095 else f"{fraction:.0%}"
    return Value(text=text.replace("%", " %"), raw=fraction, compact=text, tone=tone)


def times(ratio: float | None, *, tone: Tone = "plain") -> Value:
    """``1.30x``."""
    return unknown() if ratio is None else Value(text=f"{ratio:.2f}x", raw=ratio, tone=tone)


def size_value(row: CommRow) -> Value:
    """Bytes as nccl-tests prints them; ``all sizes`` for a cell that has none."""
    size = size_of(row)
    return Value(text="all sizes", raw=None) if size is None else Value(text=str(size), raw=size)


def readable_size(row: CommRow) -> Value:
    """``64.0 KiB``; raw in bytes."""
    size = size_of(row)
    return Value(text="all sizes", raw=None) if size is None else Value(text=format_size(size), raw=size)


def average_busbw(sweep: Sequence[CommRow]) -> float | None:
    """Unweighted mean of busbw over a sweep's sizes, bytes/s (nccl-tests' last line); None without any."""
    rates = [row.busbw_bytes_per_s for row in sweep if row.status == "ok" and row.busbw_bytes_per_s is not None]
    return sum(rates) / len(rates) if rates else None


def heading(rows: Sequence[CommRow], *, env: bool = True, op: bool = True) -> Head:
    """Group columns: operation, ranks, device and, where they say something, mode, settings, network and origin."""
    origin = origins(rows)
    paced = len({row.pacing for row in rows}) > 1

    def mode(row: CommRow) -> Value:
        parts = [place_label(row), flight_label(row), *([pacing_label(row)] if paced else [])]
        return name(", ".join(parts))

    head: list[tuple[Column, Callable[[CommRow], Value]]] = []
    if origin is not None:
        head.append((_group("source", "from"), lambda row: name(origin(row))))
    if op:
        head.append((_group("op", "operation"), lambda row: name(op_label(row))))
    head += [
        (_group("world_size", "ranks"), lambda row: Value(text=ranks_label(row), raw=row.world_size)),
        (_group("device", "device"), lambda row: name(device_label(row))),
    ]
    if op:
        head.append((_group("mode", "mode"), mode))
    if env and any(row.env for row in rows):
        head.append((_group("env", "settings"), lambda row: name(env_label(row.env))))
    if any(row.network for row in rows):
        head.append((_group("network", "network"), lambda row: name(network_label(row))))
    return tuple(head)


def in_groups(rows: Iterable[CommRow], head: Head) -> tuple[CommRow, ...]:
    """``rows`` with those of one heading together, in order of first appearance."""
    blocks: dict[tuple[str, ...], list[CommRow]] = {}
    for row in rows:
        blocks.setdefault(tuple(value(row).text for _, value in head), []).append(row)
    return tuple(row for block in blocks.values() for row in block)


def head_columns(head: Head) -> tuple[Column, ...]:
    return tuple(column for column, _ in head)


def head_values(head: Head, row: CommRow) -> tuple[Value, ...]:
    return tuple(value(row) for _, value in head)


def _group(key: str, title: str) -> Column:
    return Column(key=key, title=title, align="left", role="group")
