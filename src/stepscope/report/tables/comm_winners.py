"""A sweep of settings: the fastest at each size."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.records.comm import CommRow
from stepscope.report.tables._comm import (
    head_columns,
    head_values,
    heading,
    in_groups,
    microseconds,
    name,
    number,
    readable_size,
    times,
)
from stepscope.report.tables._common import Column, Row, Table, TableKind, Value
from stepscope.results.comm_labels import env_label
from stepscope.results.comm_winners import Winner, winners

MAX_TIED = 3


def build(rows: Sequence[CommRow]) -> Table:
    """One line a size that several settings were measured at."""
    found = winners(rows)
    head = heading([w.row for w in found], env=False)
    by_row = {id(w.row): w for w in found}
    ordered = [by_row[id(row)] for row in in_groups([w.row for w in found], head)]
    return Table(
        key="comm_winners",
        title="Fastest settings",
        columns=(*head_columns(head), *_COLUMNS),
        rows=tuple(Row(values=(*head_values(head, w.row), *_values(w))) for w in ordered),
        footnotes=(
            "fastest: smallest median time; several where their 95 % intervals overlap, or one has none. over default,"
            " over next: time of the world without settings, and of the next best, / that of the fastest.",
        )
        if found
        else (),
    )


TABLE = TableKind(key="comm_winners", title="Fastest settings", needs=("comm_rows",), build=build)

_COLUMNS = (
    Column(key="size_bytes", title="size", unit="bytes", role="identity", lead=True),
    Column(key="dtype", title="type", align="left", role="identity"),
    Column(key="settings", title="fastest", align="left"),
    Column(key="time_ns", title="time (us)", unit="ns"),
    Column(key="over_default", title="over default"),
    Column(key="over_next", title="over next", drop=2),
    Column(key="candidates", title="of", drop=1),
)


def _values(winner: Winner) -> tuple[Value, ...]:
    row = winner.row
    default_wins = winner.default is row
    return (
        readable_size(row),
        name(row.dtype),
        _fastest(winner),
        microseconds(row.time_ns_median),
        Value(text="is default", raw=1.0, tone="dim") if default_wins else times(winner.over_default),
        times(winner.over_next),
        number(len(winner.settings)),
    )


def _fastest(winner: Winner) -> Value:
    names = [env_label(row.env) for row in winner.settings[: winner.tied]]
    raw = env_label(winner.row.env)
    if winner.clear:
        return Value(text=raw, raw=raw, tone="good")
    if len(names) > MAX_TIED:
        return Value(text=f"no clear one: {names[0]} and {len(names) - 1} within noise", raw=raw, tone="dim")
    return Value(text=f"no clear one: {' or '.join(names)}", raw=raw, tone="dim")
