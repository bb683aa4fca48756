"""One row of a table with the meaning of its columns: typed values, and complaints that name file, line and column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stepscope.core.errors import DataError
from stepscope.store.importers._columns import COUNTS, SIZES, TIMES, Columns
from stepscope.store.importers._tables import MISSING, TextRow, TextTable, number

NOT_FINITE = ("nan", "inf", "-inf", "+inf", "infinity", "-infinity")


@dataclass(frozen=True, slots=True)
class TableLine:
    """One row with the meaning of its columns. percent: roles of accuracies that are in per cent."""

    table: TextTable
    row: TextRow
    columns: Columns
    percent: frozenset[str] = frozenset()

    def cell(self, role: str) -> str:
        """The text of a column; empty: unknown, or no such column."""
        place = self.columns.by_role.get(role)
        text = "" if place is None else self.row.cells[place[0]]
        return "" if text.lower() in MISSING else text

    def name(self, role: str) -> str:
        return self.columns.names[self.columns.by_role[role][0]]

    def text(self, role: str) -> str | None:
        """None where it is unknown."""
        return self.cell(role) or None

    def amount(self, role: str) -> float | None:
        """A number of 0 or more in base units. Raises DataError for anything else."""
        value = self.value(role)
        if value is not None and value < 0:
            raise self.wrong(role, "a number, 0 or more")
        return value

    def value(self, role: str) -> float | None:
        """A number in base units. Raises DataError for what is none."""
        text = self.cell(role)
        if not text:
            return None
        found, meaning = number(text), self.columns.by_role[role][1]
        scale = meaning.scale if found is not None and not found[1] else None
        if found is not None and found[1]:
            scale = _cell_scale(role, found[1], own=meaning.unit)
        if found is None or scale is None:
            raise self.wrong(role, "a number")
        return found[0] * scale

    def count(self, role: str) -> int | None:
        """A whole number of 1 or more. Raises DataError for anything else."""
        text = self.cell(role)
        found = number(text) if text else None
        if not text:
            return None
        if found is None or found[1] or found[0] != int(found[0]) or not 1 <= found[0] < 2**53:
            raise self.wrong(role, "a whole number of 1 or more")
        return int(found[0])

    def wrong(self, role: str, expected: str) -> DataError:
        return self.row.wrong(self.columns.by_role[role][0], self.name(role), expected)


def _cell_scale(role: str, unit: str, *, own: str) -> float | None:
    """Of a unit written in the cell, ``12.3 ms``; it counts more than the header's."""
    if role in ("step_ns", "epoch_ns", "time_ns"):
        return TIMES.get(unit)
    if role == "peak_memory":
        return SIZES.get(unit)
    if role.endswith("accuracy") and unit == "%":
        return 0.01
    if role == "parameters":
        return COUNTS.get(unit)
    return 1.0 if unit == own else None


def of(line: TableLine, name: str) -> str:
    return line.row.cells[line.columns.names.index(name)] if name in line.columns.names else ""


def is_word(text: str) -> bool:
    found = number(text)
    return text.lower() not in (*MISSING, *NOT_FINITE) and (found is None or bool(found[1].strip("%x/s")))


def plain_value(text: str) -> Any:
    value = number(text)
    if value is None or value[1]:
        return text
    return int(value[0]) if value[0] == int(value[0]) and "." not in text else value[0]


def whole(value: float | None) -> int | None:
    return None if not value else round(value)


def fraction(line: TableLine, role: str) -> float | None:
    """An accuracy; in per cent where any of its column is above 1. Raises DataError beyond 100."""
    value = line.amount(role)
    if value is not None and value > 100:
        raise line.wrong(role, "a fraction, or per cent")
    return value / 100 if value is not None and role in line.percent else value


def lines_of(table: TextTable, columns: Columns) -> tuple[TableLine, ...]:
    """Every row of a table."""
    percent = set()
    for role in ("train_accuracy", "validation_accuracy"):
        index, meaning = columns.by_role.get(role, (0, None))
        cells = [number(row.cells[index]) for row in table.rows] if meaning is not None and not meaning.unit else []
        if any(cell is not None and not cell[1] and cell[0] > 1 for cell in cells):
            percent.add(role)
    return tuple(TableLine(table, row, columns, frozenset(percent)) for row in table.rows)


def loss(line: TableLine, role: str) -> float | None:
    """A loss may be NaN: the training diverged, and there is no figure."""
    return None if line.cell(role).lower() in NOT_FINITE else line.value(role)
