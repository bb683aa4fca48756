"""Ranks x phases: who takes how long for what, of a few ranks each, of thousands those that matter, by host."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepscope.core.dataclass import record
from stepscope.core.words import grouped
from stepscope.diagnose.narrator import slow_things
from stepscope.results.diary import JobSteps, late_ranks, parts_of

EVERY_RANK = 16
"""Ranks with a row each; of more there are rows of what is late, of some hosts or ranks beside it, and of the median."""

BESIDE = 3
"""Hosts, or ranks of one host, that come last, beside those that are late."""


@record
class RankRow:
    """Means of the timed steps, ns, of a rank or of several. parts: by key of LEAVES;
    None: not seen, or no rank spends time in it. own_ns: None: not known. late: the
    others wait for it.
    """

    name: str
    ranks: int
    host: str | None
    step_ns: float
    parts: dict[str, float | None]
    own_ns: float | None
    late: bool


def rank_rows(steps: JobSteps) -> tuple[RankRow, ...]:
    """Return a row for each rank; of more than EVERY_RANK what is late first."""
    parts = parts_of(steps)
    chronic = [late_rank for late_rank in late_ranks(steps) if late_rank.kind == "chronic"]
    waited_for = {late_rank.rank for late_rank in chronic}
    own = steps.own_ns.mean(axis=1)
    hosts = steps.hosts

    def part(key: str, rows: Sequence[int]) -> float | None:
        own_part = steps.comm_ns if key in ("transfer", "waiting") else steps.parts_ns.get(key, steps.whole_ns)
        seen = parts[key].any() and np.isfinite(own_part[rows]).any()
        return float(parts[key][rows].mean()) if seen else None

    def row(name: str, rows: Sequence[int]) -> RankRow:
        """Return the row of some ranks: their means, ns."""
        here = {hosts[at] for at in rows}
        return RankRow(
            name=name,
            ranks=len(rows),
            host=here.pop() if len(here) == 1 else None,
            step_ns=float(steps.whole_ns[rows].mean()),
            parts={key: part(key, rows) for key in parts},
            own_ns=float(own[rows].mean()) if np.isfinite(own[rows]).all() else None,
            late=waited_for.issuperset(rows),
        )

    def rank(at: int) -> RankRow:
        return row(f"rank {steps.rank_numbers[at]}", [at])

    if steps.ranks <= EVERY_RANK:
        return tuple(rank(at) for at in range(steps.ranks))
    table = []
    for of, alike in slow_things(steps, chronic):
        rows = [late_rank.rank for late_rank in alike if late_rank.rank is not None]
        table += [rank(at) for at in rows[:EVERY_RANK]] if alike[0].of == "rank" else [row(of.partition(" (")[0], rows)]
    others = [at for at in range(steps.ranks) if at not in waited_for]
    by_host = list(grouped(others, lambda at: hosts[at]).values())
    groups = by_host if len(by_host) > 1 else [[at] for at in others]
    groups.sort(key=lambda rows: -float(np.nan_to_num(own[rows]).mean()))
    for rows in groups[:BESIDE]:
        table.append(rank(rows[0]) if len(by_host) < 2 else row(f"host {hosts[rows[0]]}", rows))
    table.append(row("all the others", others) if chronic else row("all ranks", others))
    return tuple(table)
