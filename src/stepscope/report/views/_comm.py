"""What the tables of collectives share: figures as nccl-tests prints them, and rows by what they have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from stepscope.core.words import grouped
from stepscope.records.comm import CommRow
from stepscope.report.table import Column, Format, Value, percent, whole
from stepscope.results.comm_facts import above_peak
from stepscope.results.comm_labels import (
    device_label,
    env_label,
    failure_label,
    flight_label,
    network_label,
    op_label,
    origins,
    pacing_label,
    place_label,
    ranks_label,
    size_of,
)

ABOVE = "above"
"""Stands for a share of the link that would exceed 100%."""

Head = tuple[Column, ...]


def _microseconds(ns: float) -> str:
    """Microseconds with nccl-tests' number of decimals."""
    us = ns / 1e3
    return f"{us:.0f}" if us >= 10_000 else f"{us:.1f}" if us >= 100 else f"{us:.2f}"


microseconds = Format(_microseconds, unit="ns")
gigabytes = Format(lambda bytes_per_s: decimal(bytes_per_s / 1e9), unit="bytes_per_s")
"""GB/s, GB = 1e9: two decimals as in nccl-tests, below 1 as many as show two digits."""


def decimal(value: float) -> str:
    """``230.29``, ``0.124``, ``0.0031``."""
    if value >= 1 or value <= 0:
        return f"{value:.2f}"
    places = next((n for n in range(3, 9) if round(value * 10**n) >= 10), 9)
    return f"{value:.{places}f}"


def size_column(title: str, form: Format = whole, **how: Any) -> Column:
    """Bytes as nccl-tests prints them, or with their unit; ``all sizes`` for a cell that has none."""

    def size(row: CommRow) -> Value:
        found = size_of(row)
        return Value(text="all sizes", raw=None) if found is None else form(found)

    return Column("size_bytes", title, size, form, unit="bytes", role="identity", **{"lead": True, **how})


def of_link(row: CommRow | None) -> Value:
    """busbw / peak of the link: ``above`` where it exceeds the peak, which is no share of it."""
    fraction = None if row is None else row.link_fraction
    if row is None or fraction is None or above_peak(row, row.link_peak_bytes_per_s) is None:
        return percent(fraction)
    return Value(text=ABOVE, raw=fraction, tone="dim")


def above_notes(rows: Iterable[CommRow]) -> tuple[str, ...]:
    """Why some of ``rows`` are above the peak of their link."""
    why = dict.fromkeys(above_peak(row, row.link_peak_bytes_per_s) for row in rows)
    return tuple(f"{ABOVE}: faster than the link's peak: {reason}." for reason in why if reason is not None)


def average_busbw(sweep: Sequence[CommRow]) -> float | None:
    """Unweighted mean of busbw over a sweep's sizes, bytes/s (nccl-tests' last line); None without any."""
    rates = [row.busbw_bytes_per_s for row in sweep if row.status == "ok" and row.busbw_bytes_per_s is not None]
    return sum(rates) / len(rates) if rates else None


def heading(rows: Sequence[CommRow], *, env: bool = True, op: bool = True) -> Head:
    """Group columns: operation, ranks, device and, where they say something, mode, settings, network and origin."""
    origin = origins(rows)
    paced = len({row.pacing for row in rows}) > 1

    def mode(row: CommRow) -> str:
        return ", ".join([place_label(row), flight_label(row), *([pacing_label(row)] if paced else [])])

    head = [
        Column("source", "from", origin, role="group") if origin is not None else None,
        Column("op", "operation", op_label, role="group") if op else None,
        Column("world_size", "ranks", lambda row: Value(text=ranks_label(row), raw=row.world_size), role="group"),
        Column("device", "device", device_label, role="group"),
        Column("mode", "mode", mode, role="group") if op else None,
        Column("env", "settings", lambda row: env_label(row.env), role="group")
        if env and any(row.env for row in rows)
        else None,
        Column("network", "network", network_label, role="group") if any(row.network for row in rows) else None,
    ]
    return tuple(column for column in head if column is not None)


def in_groups(rows: Iterable[CommRow], head: Head) -> tuple[CommRow, ...]:
    """``rows`` with those of one heading together, in order of first appearance."""
    blocks = grouped(rows, lambda row: tuple(column.value(row).text for column in head))
    return tuple(row for block in blocks.values() for row in block)


def failed(row: CommRow) -> str | None:
    """Why a row has no figures."""
    return None if row.status == "ok" else failure_label(row)
