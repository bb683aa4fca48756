"""One line a sweep: latency of its smallest size, best busbw and where, share of the link, average."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from stepscope.records.comm import CommRow
from stepscope.report.table import Column, Raw, Table, Value, byte_size, percent, tabled, whole
from stepscope.report.view import View
from stepscope.report.views._comm import (
    above_notes,
    average_busbw,
    gigabytes,
    heading,
    in_groups,
    microseconds,
    of_link,
)
from stepscope.results.comm_facts import best_size
from stepscope.results.comm_labels import failure_label, op_label, sweeps


def build(rows: Sequence[CommRow]) -> Table:
    """Sweeps over sizes among ``rows``, grouped by everything but the operation and its types."""
    mine = [row for row in rows if row.kind == "collective"]
    head = heading(mine, op=False)
    found = sweeps(in_groups(mine, head))
    return tabled(
        "comm_overview",
        "Collectives at a glance",
        (
            *(replace(column, get=_of_first(column)) for column in head),
            Column("op", "operation", lambda sweep: op_label(sweep[0]), role="identity", lead=True),
            Column("dtype", "type", lambda s: " ".join(filter(None, (s[0].dtype, s[0].reduce_op))), role="identity"),
            Column("place", "place", lambda sweep: "in" if sweep[0].in_place else "out", role="identity"),
            Column("mode", "mode", lambda sweep: _mode(sweep[0]), role="identity"),
            Column("sizes", "sizes", _sizes, whole, drop=1),
            Column("latency_ns", "latency (us)", _latency, microseconds, short_title="latency"),
            Column("busbw", "best busbw (GB/s)", _best("busbw_bytes_per_s"), gigabytes, short_title="best busbw"),
            Column("at_size", "at size", _best("size_bytes"), byte_size, drop=2),
            Column("link_fraction", "of link", lambda sweep: of_link(best_size(sweep)), percent, drop=4),
            Column("average", "avg busbw (GB/s)", average_busbw, gigabytes, short_title="avg busbw", drop=3),
        ),
        found.values(),
        failure=_failure,
        footnotes=(
            "latency: time at the smallest size. best busbw: the largest over the sizes from 1 MiB on (over all, where none"
            " is as large), and the size it is seen at."
            " avg busbw: plain mean over the sizes, as nccl-tests prints it: which sizes were asked for decides it.",
            *above_notes(best for sweep in found.values() if (best := best_size(sweep)) is not None),
        ),
    )


def _of_first(column: Column) -> Callable[[Sequence[CommRow]], Value]:
    return lambda sweep: column.value(sweep[0])


def _failure(sweep: Sequence[CommRow]) -> str | None:
    failed = next((row for row in sweep if row.status != "ok"), None)
    return None if failed is None or _measured(sweep) else failure_label(failed)


def _measured(sweep: Sequence[CommRow]) -> list[CommRow]:
    return [row for row in sweep if row.status == "ok" and row.time_ns is not None]


def _mode(row: CommRow) -> str:
    return row.mode if row.in_flight == 1 else f"{row.mode} x{row.in_flight}"


def _sizes(sweep: Sequence[CommRow]) -> Value:
    ok = len(_measured(sweep))
    return Value(text=f"{ok} of {len(sweep)}" if ok < len(sweep) else str(ok), raw=ok)


def _latency(sweep: Sequence[CommRow]) -> float | None:
    smallest = min(_measured(sweep), key=lambda row: row.size_bytes or 0, default=None)
    return None if smallest is None else smallest.time_ns


def _best(field: str) -> Callable[[Sequence[CommRow]], Raw]:
    """A field of :func:`best_size`."""

    def get(sweep: Sequence[CommRow]) -> Raw:
        best = best_size(sweep)
        return None if best is None else getattr(best, field)

    return get


VIEW = View(key="comm_overview", title="Collectives at a glance", needs=("comm_rows",), table=build)
