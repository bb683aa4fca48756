"""Measured collectives from figures of other tools: op, ranks, size and time. What a stated bandwidth means is found by the
times beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from math import floor, log10
from typing import Any, NamedTuple

from stepscope.core.bus_factor import BUS_FACTORS
from stepscope.core.errors import DataError
from stepscope.core.words import counted
from stepscope.records import codec
from stepscope.records.comm import CommRow
from stepscope.store.columns import Columns
from stepscope.store.tables import TableLine, TextTable, lines_of

_EXACT = 1e-6


class _Reading(NamedTuple):
    """What a table's columns may mean. text: for notes (``bus bandwidth in GB/s, sizes in MiB``)."""

    text: str
    size_scale: float
    bus: bool
    rate_scale: float


def _confirmed_reading(table: TextTable, lines: Sequence[TableLine]) -> _Reading:
    """Find the one reading under which every row's rate follows from its size and time, within the digits they have.

    Raises DataError where none fits, or several that differ.
    """
    size, time = (lines[0].columns.by_role[role][1] for role in ("size", "time_ns"))
    binary, scale, decimal, other = _UNITS.get(size.unit, ("bytes", size.scale or 1.0, "bytes", size.scale or 1.0))
    possible = [
        _Reading(f"{'bus' if bus else 'payload'} bandwidth in {rate}, sizes in {unit}", size_scale, bus, rate_scale)
        for unit, size_scale in {binary: scale, decimal: other}.items()
        for bus in (False, True)
        for rate, rate_scale in _RATES.items()
    ]
    printed = [
        (
            line.row.where.rpartition(": ")[2],
            BUS_FACTORS[_op_name(line)](line.count("world_size") or 1),
            _positive_amount(line, "size") / (size.scale or 1.0),
            _positive_amount(line, "time_ns") / (time.scale or 1.0),
            _positive_amount(line, "bandwidth"),
        )
        for line in lines
    ]
    time_digit, rate_digit = _last_digit([row[3] for row in printed]), _last_digit([row[4] for row in printed])

    def misfits(reading: _Reading) -> Iterator[tuple[float, str]]:
        for place, factor, of_size, of_time, rate in printed:
            expected = of_size * reading.size_scale / (of_time * ((time.scale or 1.0) / 1e9))
            expected = expected * (factor if reading.bus else 1.0) / reading.rate_scale
            allowed = max(_EXACT, _digit_place(of_time, time_digit) / 2 / of_time + rate_digit / 2 / rate)
            yield abs(expected - rate) / rate / allowed, place

    worst = {reading: max(misfits(reading)) for reading in possible}
    fitting = [reading for reading in possible if worst[reading][0] <= 1.01]
    if not fitting:
        nearest = min(possible, key=lambda reading: worst[reading][0])
        raise DataError(
            f"{table.source}: bandwidths contradict the times",
            why=f"no interpretation of the columns fits all rows; the nearest, {nearest.text}, fails at {worst[nearest][1]}",
            fix="the file was edited, mixed or written wrongly: measure again",
        )
    if len({(reading.size_scale, reading.rate_scale) for reading in fitting}) > 1:
        raise DataError(
            f"{table.source}: the meaning of its bandwidth is unclear",
            why=f"several interpretations fit: {'; '.join(reading.text for reading in fitting)}",
            fix="measure more sizes, or write times with more digits",
        )
    return fitting[0]


UNKNOWN: dict[str, Any] = dict.fromkeys(codec.field_names(CommRow)) | {
    "status": "ok", "kind": "collective", "in_place": False, "mode": "blocking", "in_flight": 1, "root": 0, "env": {},
    "bidirectional": False, "notes": (), "rank_hosts": (), "job_hosts": (),
}  # fmt: skip
"""Fields of a row of which nothing is known: None, or the only value that a blocking collective can have."""


def mean_row(*, op: str, world_size: int, size_bytes: int, time_ns_mean: float | None, **fields: Any) -> CommRow:
    """Make a row of back-to-back calls with algbw and busbw worked out from size and time; S in the nccl-tests sense."""
    algbw = None if time_ns_mean is None else size_bytes / (time_ns_mean / 1e9)
    fields |= {
        "op": op, "world_size": world_size, "size_bytes": size_bytes, "asked_bytes": size_bytes,
        "pacing": "back_to_back", "time_ns_mean": time_ns_mean, "algbw_bytes_per_s": algbw,
        "busbw_bytes_per_s": None if algbw is None else algbw * BUS_FACTORS[op](world_size),
    }  # fmt: skip
    return CommRow(**(UNKNOWN | fields))


def _digit_place(value: float, column: float) -> float:
    """Return the place of one value's last digit: tools that print four significant digits write 55.44, then 124.0."""
    return max(column, 10.0 ** (floor(log10(value)) - 3))


def _last_digit(values: Sequence[float]) -> float:
    """Return the place of the last digit that a column has: 0.01 for 22.3 and 434.99."""
    exponents = [Decimal(repr(value)).normalize().as_tuple().exponent for value in values]
    return float(10.0 ** min([0, *(e for e in exponents if isinstance(e, int))]))


_ELEMENT_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "fp32": 4, "fp16": 2, "bf16": 2}
_RATES = {"GB/s": 1e9, "Gbit/s": 1e9 / 8}
_UNITS = {"kb": ("KiB", 2.0**10, "kB", 1e3), "mb": ("MiB", 2.0**20, "MB", 1e6), "gb": ("GiB", 2.0**30, "GB", 1e9)}
"""A size's unit -> what it may stand for."""
_DONE = ("", "ok", "success", "pass", "done")
_WORDS = {"world_size": "a number of ranks", "size": "a size", "time_ns": "a time with its unit"}


def comm_rows_of(table: TextTable, columns: Columns) -> tuple[tuple[CommRow, ...], tuple[str, ...]]:
    """Return (rows, notes). Raises DataError for a row that is damaged, contradicts others, or lacks ranks, size or time."""
    lacking = [role for role in _WORDS if not columns.has(role)]
    if lacking:
        raise DataError(
            f"{table.source}: the table of collectives lacks {', '.join(_WORDS[role] for role in lacking)}",
            why=f"the columns are: {', '.join(table.names)}",
            fix="write a CSV with op,world_size,size_bytes,time_us, or state what a column is: --columns NAME=size_bytes",
        )
    lines = lines_of(table, columns)
    even = [line for line in lines if "uneven" not in (cell.lower() for cell in line.row.cells)]
    timed = [line for line in even if line.cell("time_ns") or line.cell("status").lower() not in _DONE] or even
    notes = []
    if uneven := len(lines) - len(even):
        notes.append(f"{counted(uneven, 'row')} of uneven splits left out: their size is not what a rank sends")
    if untimed := len(even) - len(timed):
        notes.append(f"{counted(untimed, 'row')} without a time left out")
    return tuple(_comm_rows(table, timed)), tuple(f"{table.source.name}: {note}" for note in notes)


def _comm_rows(table: TextTable, lines: Sequence[TableLine]) -> Iterator[CommRow]:
    """Yield the row of each line, sizes and bandwidths read as the times confirm. Raises DataError for a damaged line, and
    for two of one size."""
    finished = [line for line in lines if line.cell("status").lower() in _DONE]
    rated = [line for line in finished if line.columns.has("bandwidth") and line.amount("bandwidth")]  # 0.00: rounded
    reading = _confirmed_reading(table, rated) if rated else None
    line_of: dict[tuple[str, int | None, int, str], TableLine] = {}
    for line in lines:
        row = _comm_row(line, reading, name=table.source.stem)
        before = line_of.setdefault((row.op, row.size_bytes, row.world_size, row.dtype), line)
        if before is not line:
            raise _duplicate_error(before, line)
        yield row


def _comm_row(line: TableLine, reading: _Reading | None, *, name: str) -> CommRow:
    """Return the row of one line. reading: what its size and bandwidth mean; None: as its columns state. name: the
    table's."""
    op, ranks, dtype = _op_name(line), line.count("world_size"), line.cell("precision")
    stated = line.columns.by_role["size"][1].scale or 1.0
    size = round(_positive_amount(line, "size") / stated * (stated if reading is None else reading.size_scale))
    if not ranks:
        raise line.wrong("world_size", "a whole number of 1 or more")
    width, status = _ELEMENT_BYTES.get(dtype), line.cell("status")
    done = status.lower() in _DONE
    return mean_row(
        cell_id=f"{name}/{op}",
        op=op,
        world_size=ranks,
        dtype=dtype or "unknown",
        device=line.cell("device").partition(":")[0] or "unknown",
        backend=line.cell("backend") or "unknown",
        size_bytes=size,
        numel=size // width if width else None,
        time_ns_mean=_positive_amount(line, "time_ns") if done else None,
        iterations=line.count("steps"),
        status="ok" if done else "error",
        error=None if done else status,
        notes=(
            *(() if reading is None else (f"its bandwidth is {reading.text}, as its times confirm",)),
            "the table does not state whether times are means, or over how many ranks",
        ),
    )


def _duplicate_error(one: TableLine, other: TableLine) -> DataError:
    """Return the error of a table that has one size twice, with the columns in which its two lines differ."""
    pairs = zip(one.columns.names, one.row.cells, other.row.cells, strict=True)
    differ = [f"{name} ({a or 'nothing'} and {b or 'nothing'})" for name, a, b in pairs if a != b]
    return DataError(
        f"{other.row.where}: {_op_name(other)} of this size appears twice",
        why=f"it differs from {one.row.where} in {', '.join(differ[:5]) or 'nothing'}",
        fix="keep one row per size in each file",
    )


def _op_name(line: TableLine) -> str:
    """Return the collective that a text is, or has as a part (``all_reduce_bandwidth``)."""
    text = "".join(c for c in line.cell("op").lower() if c.isalpha())
    for op in sorted(BUS_FACTORS, key=len, reverse=True):
        if op.replace("_", "") in text:
            return op
    raise line.wrong("op", f"one of {', '.join(BUS_FACTORS)}")


def _positive_amount(line: TableLine, role: str) -> float:
    value = line.amount(role)
    if not value:
        raise line.wrong(role, "a number above 0")
    return value
