"""A sweep of settings: the fastest at each size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from stepscope.records.comm import CommRow
from stepscope.report.table import Column, Table, Value, byte_size, said, tabled, times, whole
from stepscope.report.view import View
from stepscope.report.views._comm import heading, in_groups, microseconds, size_column
from stepscope.results.comm_facts import Winner, winners
from stepscope.results.comm_labels import env_label

MAX_TIED = 3


def build(rows: Sequence[CommRow]) -> Table:
    """One line a size that several settings were measured at."""
    found = winners(rows)
    head = heading([w.row for w in found], env=False)
    by_row = {id(w.row): w for w in found}
    ordered = [by_row[id(row)] for row in in_groups([w.row for w in found], head)]
    over_default: Value = said("is default", 1.0, tone="dim")
    size_of = size_column("size", byte_size)
    return tabled(
        "comm_winners",
        "Fastest settings",
        (
            *(replace(column, get=_of_row(column)) for column in (*head, size_of)),
            Column("dtype", "type", lambda w: w.row.dtype, role="identity"),
            Column("settings", "fastest", _fastest),
            Column("time_ns", "time (us)", lambda w: w.row.time_ns_median, microseconds),
            Column(
                "over_default", "over default", lambda w: over_default if w.default is w.row else w.over_default, times
            ),
            Column("over_next", "over next", lambda w: w.over_next, times, drop=2),
            Column("candidates", "of", lambda w: len(w.settings), whole, drop=1),
        ),
        ordered,
        footnotes=(
            "fastest: smallest median time; several where their 95% intervals overlap, or one has none. over default,"
            " over next: time of the world without settings, and of the next best, / that of the fastest.",
        ),
    )


def _of_row(column: Column) -> Callable[[Winner], Value]:
    return lambda winner: column.value(winner.row)


def _fastest(winner: Winner) -> Value:
    names = [env_label(row.env) for row in winner.settings[: winner.tied]]
    raw = env_label(winner.row.env)
    if winner.clear:
        return Value(text=raw, raw=raw, tone="good")
    if len(names) > MAX_TIED:
        return Value(text=f"no clear one: {names[0]} and {len(names) - 1} within noise", raw=raw, tone="dim")
    return Value(text=f"no clear one: {' or '.join(names)}", raw=raw, tone="dim")


VIEW = View(key="comm_winners", title="Fastest settings", needs=("comm_rows",), table=build)
