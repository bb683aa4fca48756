"""Rows of a table of collectives: op, ranks, size and time; what its bandwidth means is found by its own times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from stepscope.core.errors import DataError
from stepscope.core.words import counted
from stepscope.records.comm import CommRow
from stepscope.store.importers._collectives import BUS_FACTORS, Reading, StatedRate, comm_row, reading_of, readings
from stepscope.store.importers._columns import SIZES, Columns
from stepscope.store.importers._tables import Row, Table, number

_ELEMENT_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "fp32": 4, "fp16": 2, "bf16": 2}
_RATES = {"GB/s": 1e9, "Gbit/s": 1e9 / 8}
_DECIMAL = {"kb": 1e3, "mb": 1e6, "gb": 1e9}
_DONE = ("", "ok", "success", "pass", "done")


def comm_rows_of(table: Table, columns: Columns) -> tuple[tuple[CommRow, ...], tuple[str, ...]]:
    """(rows, notes). Raises DataError for a row that is damaged, contradicts the others, or lacks ranks, size or time."""
    rows = tuple(row for row in table.rows if "uneven" not in (cell.lower() for cell in row.cells))
    left_out = len(table.rows) - len(rows)
    note = f"{table.source.name}: {counted(left_out, 'row')} of uneven splits left out: what a rank sends is not their size"
    return tuple(_comm_rows(replace(table, rows=rows), columns)), (note,) if left_out else ()


def _comm_rows(table: Table, columns: Columns) -> Iterator[CommRow]:
    lacking = [role for role in ("world_size", "size", "time_ns") if not columns.has(role)]
    if lacking:
        raise DataError(
            f"{table.source}: collectives without {', '.join(_WORDS[role] for role in lacking)}",
            why=f"the columns are: {', '.join(table.names)}",
            fix="write a CSV with op,world_size,size_bytes,time_us, or say what a column is: --columns NAME=size_bytes",
        )
    rows = [row for row in table.rows if _cell(row, columns, "status").lower() in _DONE]
    reading = _reading(table, columns, rows) if columns.has("bandwidth") and rows else None
    scale = reading.size_scale if reading is not None else columns.by_role["size"][1].scale or 1.0
    kinds: dict[tuple[str, int, str, str], Row] = {}
    for row in table.rows:
        op, size = _op(row, columns), round(_positive(row, columns, "size") * scale)
        ranks, dtype = round(_positive(row, columns, "world_size")), _cell(row, columns, "precision")
        before = kinds.setdefault((op, size, str(ranks), dtype), row)
        if before is not row:
            raise _twice(table, columns, before, row)
        status = _cell(row, columns, "status")
        finished = status.lower() in _DONE
        width = _ELEMENT_BYTES.get(dtype)
        steps = number(_cell(row, columns, "steps"))
        yield comm_row(
            cell_id=f"{table.source.stem}/{op}",
            op=op,
            world_size=ranks,
            dtype=dtype or "unknown",
            device=_cell(row, columns, "device").partition(":")[0] or "unknown",
            backend=_cell(row, columns, "backend") or "unknown",
            size_bytes=size,
            numel=size // width if width else None,
            time_ns_mean=_positive(row, columns, "time_ns") * (columns.by_role["time_ns"][1].scale or 1.0)
            if finished
            else None,
            iterations=None if steps is None else round(steps[0]),
            status="ok" if finished else "error",
            error=None if finished else status,
            notes=(
                *(() if reading is None else (f"its bandwidth is {reading.text}: checked against its times",)),
                "the table does not say whether times are means, nor over how many ranks",
            ),
        )


_WORDS = {"world_size": "a number of ranks", "size": "a size", "time_ns": "a time with its unit"}


def _reading(table: Table, columns: Columns, rows: list[Row]) -> Reading:
    """What sizes and bandwidths mean: the one reading that fits all rows."""
    unit = columns.by_role["size"][1].unit
    binary = columns.by_role["size"][1].scale or 1.0
    name = unit.upper() if unit in _DECIMAL else "bytes"
    sizes = {f"{name[0]}i{name[1:]}": SIZES[unit], name: _DECIMAL[unit]} if unit in _DECIMAL else {name: binary}
    time_scale = columns.by_role["time_ns"][1].scale or 1.0
    stated = [
        StatedRate(
            where=row.where.rpartition(": ")[2],
            op=_op(row, columns),
            world_size=round(_positive(row, columns, "world_size")),
            size=_positive(row, columns, "size"),
            time=_positive(row, columns, "time_ns"),
            rate=_positive(row, columns, "bandwidth"),
        )
        for row in rows
    ]
    return reading_of(str(table.source), stated, readings(sizes, _RATES), time_unit_s=time_scale / 1e9)


def _twice(table: Table, columns: Columns, one: Row, other: Row) -> DataError:
    pairs = zip(table.names, one.cells, other.cells, strict=True)
    differ = [f"{name} ({a or 'nothing'} and {b or 'nothing'})" for name, a, b in pairs if a != b]
    texts = [each for each in differ if not any(c.isdigit() for c in each)]
    return DataError(
        f"{other.where}: {_op(other, columns)} of this size a second time",
        why=f"it differs from {one.where} in {', '.join(texts or differ[:5]) or 'nothing'}",
        fix="keep one row a size in each file",
    )


def _op(row: Row, columns: Columns) -> str:
    """The collective that a text names: itself, or as a part (``all_reduce_bandwidth``)."""
    index = columns.by_role["op"][0]
    text = "".join(c for c in row.cells[index].lower() if c.isalpha())
    for op in sorted(BUS_FACTORS, key=len, reverse=True):
        if op.replace("_", "") in text:
            return op
    raise row.wrong(index, columns.names[index], f"one of {', '.join(BUS_FACTORS)}")


def _cell(row: Row, columns: Columns, role: str) -> str:
    place = columns.by_role.get(role)
    return "" if place is None else row.cells[place[0]]


def _positive(row: Row, columns: Columns, role: str) -> float:
    """In the column's own unit."""
    index = columns.by_role[role][0]
    found = number(row.cells[index])
    if found is None or found[1] or found[0] <= 0:
        raise row.wrong(index, columns.names[index], "a number above 0")
    return found[0]
