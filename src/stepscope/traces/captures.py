"""Captures that begin apart: what a rank waits in a collective for one whose capture begins meanwhile is left out of its
times. Why that one is late lies before its capture.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import TypeVar

import numpy as np

from stepscope.core.words import grouped
from stepscope.records.trace_budget import GroupBudget, Parts, PhaseBudget
from stepscope.records.trace_collectives import JobCollectives, RankCollective, RankCommunication
from stepscope.records.trace_quality import QualityFact
from stepscope.records.trace_summary import RankPass
from stepscope.stats import spans
from stepscope.stats.spans import Spans
from stepscope.traces.alignment import corrected
from stepscope.traces.events import column
from stepscope.traces.groups import group_name
from stepscope.traces.waits import exact, spans_of

APART_NS, APART_SHARE = 50_000_000, 0.05
"""Less of a rank's waiting before another's capture is left where it is: profilers of one job begin milliseconds apart."""


def begun_apart(
    passes: Sequence[RankPass], ranks: Sequence[RankCommunication], job: JobCollectives
) -> tuple[Sequence[RankPass], tuple[QualityFact, ...]]:
    """Return the passes without such waits, and which ranks' captures begin behind the others'; none where none was cut."""
    fits = {fit.rank: fit for fit in job.clocks.fits}
    begins = {r.rank: corrected(fits[r.rank], r.begins_ns) for r in ranks if r.begins_ns is not None}
    cuts = _waits_for_captures(ranks, job, begins)
    if not cuts:
        return passes, ()
    first = median(begins[rank] for rank in cuts)
    later = {r: by for r, begun in begins.items() if r not in cuts and (by := round(begun - first)) >= APART_NS}
    others = ("the others",) if len(cuts) >= len(later) else tuple(f"rank {rank}" for rank in sorted(cuts))
    facts = [
        QualityFact(kind="captures-apart", rank=rank, time_ns=by, names=others, matters=False)
        for rank, by in later.items()
    ]
    return [_pass_without_waits(p, cuts[p.facts.rank]) if later and p.facts.rank in cuts else p for p in passes], tuple(
        facts
    )


def _waits_for_captures(
    ranks: Sequence[RankCommunication], job: JobCollectives, begins: Mapping[int, int]
) -> dict[int, Spans]:
    """Return by rank, on its own clock, when it waited in a collective in which the capture of another rank began.

    Ranks that did so for short are left out.
    """
    look = {r.rank: r for r in ranks}
    before: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for m in job.instances if len(begins) > 1 else ():
        begun = max((begins[p.rank] for p in m.ranks if p.rank in begins), default=0)
        for p in m.ranks:
            if p.waiting_ns and p.start_ns + APART_NS <= begun:
                own = look[p.rank].collectives[p.position]
                before[p.rank].append((own.start_ns, own.start_ns + p.waiting_ns))
    cuts = {rank: spans.union(*np.array(pairs, dtype=np.int64).T) for rank, pairs in before.items()}
    return {rank: cut for rank, cut in cuts.items() if cut.measure >= APART_SHARE * _window_ns(look[rank])}


def _pass_without_waits(rank: RankPass, cut: Spans) -> RankPass:
    """Return the rank's pass as if it had entered a collective only when the captures of all of its ranks had begun."""
    communication, budget = rank.communication, rank.budget
    assert communication is not None
    assert budget is not None
    exposed = spans_of(communication.exposed)
    waited = spans.intersect(cut, exposed)
    calls = communication.collectives
    shorter = spans.measure_within(cut, column(calls, "start_ns"), column(calls, "end_ns")).tolist()
    of_group = grouped(calls, group_name)

    def parts(row: Parts, low: int) -> Parts:
        less, idle = (spans.clip(s, low=low, high=low + row.window_ns).measure for s in (cut, waited))
        return _row_with_less(
            row, window_ns=idle, comm_ns=less, overlap_ns=less - idle, exposed_comm_ns=idle, busy_ns=idle
        )

    def group(row: GroupBudget) -> GroupBudget:
        inside = of_group.get(row.group, ())
        busy = spans.union(column(inside, "start_ns"), column(inside, "end_ns"))
        less, idle = (spans.intersect(s, busy).measure for s in (cut, waited))
        return _row_with_less(row, comm_ns=less, exposed_ns=idle)

    # Whose phase a collective is of is not kept: it is the one that communicates most.
    most = max(rank.phases, key=lambda phase: phase.exposed_comm_ns, default=None)
    return replace(
        rank,
        budget=replace(budget, parts=parts(budget.parts, budget.start_ns)),
        steps=tuple(replace(step, parts=parts(step.parts, step.start_ns)) for step in rank.steps),
        phases=tuple(
            _row_with_less(phase, exposed_comm_ns=waited.measure, comm_ns=cut.measure) if phase is most else phase
            for phase in rank.phases
        ),
        groups=tuple(map(group, rank.groups)),
        communication=replace(
            communication,
            exposed=exact(spans.subtract(exposed, cut)),
            collectives=tuple(
                _row_with_less(replace(c, start_ns=c.start_ns + less), exposed_ns=less) if less else c
                for c, less in zip(calls, shorter, strict=True)
            ),
        ),
    )


Row = TypeVar("Row", Parts, PhaseBudget, GroupBudget, RankCollective)


def _row_with_less(row: Row, **ns: int) -> Row:
    """Return it with so much less in these columns, nothing below 0."""
    return replace(row, **{name: max(0, getattr(row, name) - less) for name, less in ns.items()})


def _window_ns(rank: RankCommunication) -> int:
    return rank.window_ns[1] - rank.window_ns[0] if rank.window_ns is not None else 0
