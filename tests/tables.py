"""Cells of tables by the keys of their columns."""

from __future__ import annotations

from typing import Any

from stepscope.report.table import Table, Value


def at(table: Table, key: str, row: int = 0) -> Value:
    """One cell."""
    return table.rows[row].values[[column.key for column in table.columns].index(key)]


def raws(table: Table, key: str) -> list[Any]:
    """The raw values of a column."""
    return [at(table, key, row).raw for row in range(len(table.rows))]


def texts(table: Table, key: str) -> list[str]:
    """What people read in a column."""
    return [at(table, key, row).text for row in range(len(table.rows))]
