"""Which sweep of measured collectives on one side is which on the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stepscope.records.comm import CommRow
from stepscope.results.comm_labels import (
    env_label,
    flight_label,
    identity,
    op_label,
    pacing_label,
    place_label,
    sweep_names,
)

Key = tuple[object, ...]
Rows = dict[int, CommRow]
"""Rows of one sweep by size in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPair:
    """The same sweep on two sides. name: ``all_reduce on 8 ranks, NCCL_ALGO=Ring``; both names where they differ."""

    name: str
    first: Rows
    second: Rows


def sweep_pairs(
    first: Sequence[CommRow], second: Sequence[CommRow]
) -> tuple[tuple[SweepPair, ...], tuple[tuple[str, ...], tuple[str, ...]]]:
    """Sweeps that both sides have, and the names of those that one side has alone.

    A sweep is everything it was measured with, variables, device, backend, network, pacing and calls in flight included.
    What is left pairs by operation, ranks, type and way of calling, where that names one sweep on each side.
    """
    # One row of each, so that names say what was measured and not in which of the two it was.
    called = sweep_names(
        list({(identity(r), r.size_bytes): r for r in (*_measured(first), *_measured(second))}.values())
    )
    mine, mine_twice = _sweeps(_measured(first))
    theirs, theirs_twice = _sweeps(_measured(second))
    pairs = [(mine.pop(key), theirs.pop(key)) for key in list(mine) if key in theirs]
    for key, rows in list(mine.items()):
        twins = [other for other in mine.values() if _call(other) == _call(rows)]
        alike = [other for other, found in theirs.items() if _call(found) == _call(rows)]
        if len(alike) == len(twins) == 1:
            pairs.append((mine.pop(key), theirs.pop(alike[0])))
    alone = tuple(
        tuple(
            [_name(rows, called) for rows in left.values()]
            + [f"{_name(rows, called)}: measured more than once, so it cannot be paired" for rows in twice]
        )
        for left, twice in ((mine, mine_twice), (theirs, theirs_twice))
    )
    return tuple(_pair(a, b, called) for a, b in pairs), (alone[0], alone[1])


def _measured(rows: Sequence[CommRow]) -> list[CommRow]:
    return [row for row in rows if row.kind == "collective" and row.status == "ok" and row.time_ns and row.size_bytes]


def _sweeps(rows: Sequence[CommRow]) -> tuple[dict[Key, Rows], list[Rows]]:
    """Sweeps by what identifies them, and those of which a size is there more than once."""
    found: dict[Key, Rows] = {}
    twice: dict[Key, Rows] = {}
    for row in rows:
        key = (*identity(row), row.root, row.bidirectional)
        sizes = found.setdefault(key, {})
        if row.size_bytes in sizes:
            twice[key] = sizes
        sizes[row.size_bytes or 0] = row
    return {key: sizes for key, sizes in found.items() if key not in twice}, list(twice.values())


def _call(rows: Rows) -> Key:
    row = next(iter(rows.values()))
    return (op_label(row), row.world_size, row.dtype, row.reduce_op, place_label(row), flight_label(row), row.root)


def _name(rows: Rows, called: Callable[[CommRow], str]) -> str:
    row = next(iter(rows.values()))
    return f"{op_label(row)} on {called(row)}"


def _pair(first: Rows, second: Rows, called: Callable[[CommRow], str]) -> SweepPair:
    a, b = _name(first, called), _name(second, called)
    return SweepPair(name=a if a == b else f"{a} → {b}", first=first, second=second)


def conditions_of(row: CommRow) -> dict[str, object]:
    """What a sweep was measured on, for a list of what differs between two."""
    return {
        "device": row.device,
        "backend": row.backend,
        "network": row.network or "real",
        "pacing": pacing_label(row),
        "hosts": row.hosts,
        "variables": env_label(row.env),
    }
