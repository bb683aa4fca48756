"""Rows of measured collectives from foreign figures: what a stated bandwidth means is found by its own times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import floor, log10
from typing import Any

from stepscope.core.bus_factor import BUS_FACTORS
from stepscope.core.errors import DataError
from stepscope.records import codec
from stepscope.records.comm import CommRow

_EXACT = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedRate:
    """One line of a foreign table. size, time, rate: in the source's units, whatever those mean."""

    where: str
    op: str
    world_size: int
    size: float
    time: float
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnReading:
    """What a table's columns mean. text: for notes (``bus bandwidth in GB/s, sizes in MiB``)."""

    text: str
    size_scale: float
    bus: bool
    rate_scale: float


def readings(size_units: Mapping[str, float], rate_units: Mapping[str, float]) -> tuple[ColumnReading, ...]:
    """Every combination of size unit (name -> bytes), payload or bus bandwidth, and rate unit (name -> bytes/s)."""
    return tuple(
        ColumnReading(
            text=f"{'bus' if bus else 'payload'} bandwidth in {rate}, sizes in {size}",
            size_scale=size_scale,
            bus=bus,
            rate_scale=rate_scale,
        )
        for size, size_scale in size_units.items()
        for bus in (False, True)
        for rate, rate_scale in rate_units.items()
    )


def reading_of(
    source: str, rows: Sequence[StatedRate], possible: Sequence[ColumnReading], *, time_unit_s: float
) -> ColumnReading:
    """The one reading under which every row's rate follows from its size and time, within the digits they have.

    time_unit_s: of the time column (1e-3 for ms). Raises DataError where none fits, or several that differ.
    """
    if not rows:
        raise DataError(
            f"{source}: the table of collectives has no rows", why="nothing was measured, or the file was cut off"
        )
    time_digit = _last_digit([row.time for row in rows])
    rate_digit = _last_digit([row.rate for row in rows])

    def misfit(row: StatedRate, reading: ColumnReading) -> float:
        factor = BUS_FACTORS[row.op](row.world_size) if reading.bus else 1.0
        expected = row.size * reading.size_scale / (row.time * time_unit_s) * factor / reading.rate_scale
        allowed = max(_EXACT, _digit(row.time, time_digit) / 2 / row.time + rate_digit / 2 / row.rate)
        return abs(expected - row.rate) / row.rate / allowed

    worst = {reading: max((misfit(row, reading), row.where) for row in rows) for reading in possible}
    fitting = [reading for reading in possible if worst[reading][0] <= 1.01]
    if not fitting:
        nearest = min(possible, key=lambda reading: worst[reading][0])
        raise DataError(
            f"{source}: bandwidths contradict the times",
            why=f"no interpretation of the columns fits all rows; the nearest, {nearest.text}, fails at {worst[nearest][1]}",
            fix="the file was edited, mixed or written wrongly: measure again",
        )
    first = fitting[0]
    same = all((other.size_scale, other.rate_scale) == (first.size_scale, first.rate_scale) for other in fitting)
    if not same:
        raise DataError(
            f"{source}: the meaning of its bandwidth is unclear",
            why=f"several interpretations fit: {'; '.join(each.text for each in fitting)}",
            fix="measure more sizes, or write times with more digits",
        )
    return first


UNKNOWN: dict[str, Any] = dict.fromkeys(codec.field_names(CommRow)) | {
    "status": "ok", "kind": "collective", "in_place": False, "mode": "blocking", "in_flight": 1, "root": 0, "env": {},
    "bidirectional": False, "notes": (), "rank_hosts": (),
}  # fmt: skip
"""Fields of a row of which nothing is known: None, or the only value that a blocking collective can have."""


def mean_row(*, op: str, world_size: int, size_bytes: int, time_ns_mean: float | None, **known: Any) -> CommRow:
    """A row of back-to-back calls with algbw and busbw worked out from size and time; S in the nccl-tests sense."""
    algbw = None if time_ns_mean is None else size_bytes / (time_ns_mean / 1e9)
    known |= {
        "op": op, "world_size": world_size, "size_bytes": size_bytes, "asked_bytes": size_bytes,
        "pacing": "back_to_back", "time_ns_mean": time_ns_mean, "algbw_bytes_per_s": algbw,
        "busbw_bytes_per_s": None if algbw is None else algbw * BUS_FACTORS[op](world_size),
    }  # fmt: skip
    return CommRow(**(UNKNOWN | known))


def _digit(value: float, column: float) -> float:
    """The last digit of one value: tools that print four significant digits write 55.44, then 124.0."""
    return max(column, 10.0 ** (floor(log10(value)) - 3))


def _last_digit(values: Sequence[float]) -> float:
    """The place of the last digit that a column has: 0.01 for 22.3 and 434.99."""
    exponents = [Decimal(repr(value)).normalize().as_tuple().exponent for value in values]
    return float(10.0 ** min([0, *(e for e in exponents if isinstance(e, int))]))
