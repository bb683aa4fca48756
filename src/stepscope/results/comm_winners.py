"""A sweep of settings: which is the fastest at each size, and by how much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.core.words import grouped
from stepscope.records.comm import CommRow
from stepscope.results.comm_labels import sweeps


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """The fastest settings at one size.

    settings: rows of all settings measured there, fastest first. tied: how many of them are not told apart from the
    fastest, itself included: their 95% intervals of the median overlap, or one has none. default: the row without
    settings, None: the sweep has none or it gave no result. over_default, over_next: their time / the fastest's.
    """

    settings: tuple[CommRow, ...]
    tied: int
    default: CommRow | None
    over_default: float | None
    over_next: float

    @property
    def row(self) -> CommRow:
        return self.settings[0]

    @property
    def clear(self) -> bool:
        return self.tied == 1


def winners(rows: Sequence[CommRow]) -> tuple[Winner, ...]:
    """One for each size that at least two settings of the environment were measured at; sizes in their order."""
    measured = [r for r in rows if r.kind == "collective" and r.status == "ok" and r.time_ns_median is not None]
    alike = grouped((row for sweep in sweeps(measured).values() for row in sweep), _same_but_env)
    return tuple(_winner(group) for group in alike.values() if len({tuple(sorted(r.env.items())) for r in group}) > 1)


def _same_but_env(row: CommRow) -> tuple[object, ...]:
    return (
        row.op, row.pattern, row.dtype, row.reduce_op, row.in_place, row.mode, row.in_flight, row.pacing, row.root,
        row.world_size, row.hosts, row.device, row.backend, row.network, row.size_bytes,
    )  # fmt: skip


def _winner(group: Sequence[CommRow]) -> Winner:
    ordered = sorted(group, key=_time)
    best = ordered[0]
    default = next((row for row in ordered if not row.env), None)
    return Winner(
        settings=tuple(ordered),
        tied=1 + sum(not _apart(best, row) for row in ordered[1:]),
        default=default,
        over_default=None if default is None else _time(default) / _time(best),
        over_next=_time(ordered[1]) / _time(best),
    )


def _time(row: CommRow) -> float:
    assert row.time_ns_median is not None, "only measured rows are compared"
    return row.time_ns_median


def _apart(fast: CommRow, slow: CommRow) -> bool:
    """Whether the intervals of two medians do not overlap (stricter than a test); False where one is missing."""
    return fast.time_ns_high is not None and slow.time_ns_low is not None and fast.time_ns_high < slow.time_ns_low
