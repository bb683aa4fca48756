"""Captures that begin apart: what a rank waits in a collective for one whose capture begins meanwhile is left out of its
times. Why that one is late lies before its capture.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from stepscope.records.trace_budget import GroupBudget, Parts, PhaseBudget
from stepscope.records.trace_collectives import JobCollectives, RankCommunication
from stepscope.records.trace_quality import QualityFact
from stepscope.records.trace_summary import RankPass
from stepscope.stats import spans
from stepscope.stats.spans import Spans
from stepscope.traces.alignment import corrected
from stepscope.traces.groups import group_name
from stepscope.traces.waits import exact, spans_of

APART_NS, APART_SHARE = 50_000_000, 0.05
"""Less of a rank's waiting before another's capture is left where it is: profilers of one job begin milliseconds apart."""


def begun_apart(
    passes: Sequence[RankPass], ranks: Sequence[RankCommunication], job: JobCollectives
) -> tuple[Sequence[RankPass], tuple[QualityFact, ...]]:
    """Return the passes without such waits, and which ranks' captures begin behind the others'; none where none was cut."""
    fits = {fit.rank: fit for fit in job.clocks.fits}
    begins = {r.rank: corrected(fits[r.rank], r.begins_ns) for r in ranks if r.begins_ns is not None and r.rank in fits}
    cuts = _waits(ranks, job, begins)
    first = median(begins[rank] for rank in cuts) if cuts else 0
    later = {rank: round(begun - first) for rank, begun in begins.items() if cuts and rank not in cuts}
    later = {rank: by for rank, by in later.items() if by >= APART_NS}
    others = ("the others",) if len(cuts) >= len(later) else tuple(f"rank {rank}" for rank in sorted(cuts))
    facts = [
        QualityFact(kind="captures-apart", rank=rank, time_ns=by, names=others, matters=False)
        for rank, by in later.items()
    ]
    return [_without(p, cuts[p.facts.rank]) if facts and p.facts.rank in cuts else p for p in passes], tuple(facts)


def _waits(ranks: Sequence[RankCommunication], job: JobCollectives, begins: Mapping[int, int]) -> dict[int, Spans]:
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


def _without(rank: RankPass, cut: Spans) -> RankPass:
    """Return the rank's pass as if it had entered a collective only when the captures of all of its ranks had begun."""
    communication = rank.communication
    assert communication is not None
    assert rank.budget is not None
    exposed = spans_of(communication.exposed)
    waited = spans.intersect(cut, exposed)
    budget, steps = rank.budget, rank.steps
    return replace(
        rank,
        budget=replace(budget, parts=_less(budget.parts, cut, waited)),
        steps=tuple(
            replace(
                step,
                parts=_less(
                    step.parts,
                    *(
                        spans.clip(s, low=step.start_ns, high=step.start_ns + step.parts.window_ns)
                        for s in (cut, waited)
                    ),
                ),
            )
            for step in steps
        ),
        phases=_phases(rank.phases, cut, waited),
        groups=_groups(rank.groups, communication, cut, waited),
        communication=replace(
            communication,
            exposed=exact(spans.subtract(exposed, cut)),
            collectives=tuple(
                replace(c, start_ns=c.start_ns + shorter, exposed_ns=max(0, c.exposed_ns - shorter))
                if (shorter := spans.clip(cut, low=c.start_ns, high=c.end_ns).measure)
                else c
                for c in communication.collectives
            ),
        ),
    )


def _window_ns(rank: RankCommunication) -> int:
    return rank.window_ns[1] - rank.window_ns[0] if rank.window_ns is not None else 0


def _less(parts: Parts, cut: Spans, waited: Spans) -> Parts:
    less, exposed = cut.measure, waited.measure
    return replace(
        parts,
        window_ns=parts.window_ns - exposed,
        comm_ns=parts.comm_ns - less,
        overlap_ns=parts.overlap_ns - (less - exposed),
        exposed_comm_ns=parts.exposed_comm_ns - exposed,
        busy_ns=parts.busy_ns - exposed,
    )


def _phases(phases: Sequence[PhaseBudget], cut: Spans, waited: Spans) -> tuple[PhaseBudget, ...]:
    """Take it from the phase that communicates most: whose the collectives are is not kept."""
    most = max(range(len(phases)), key=lambda at: phases[at].exposed_comm_ns, default=-1)
    return tuple(
        replace(
            phase,
            exposed_comm_ns=max(0, phase.exposed_comm_ns - waited.measure),
            comm_ns=max(0, phase.comm_ns - cut.measure),
        )
        if at == most
        else phase
        for at, phase in enumerate(phases)
    )


def _groups(
    groups: Sequence[GroupBudget], communication: RankCommunication, cut: Spans, waited: Spans
) -> tuple[GroupBudget, ...]:
    less: dict[str, tuple[int, int]] = {}
    for c in communication.collectives:
        part, exposed = (spans.clip(s, low=c.start_ns, high=c.end_ns).measure for s in (cut, waited))
        so_far = less.get(group_name(c), (0, 0))
        less[group_name(c)] = (so_far[0] + part, so_far[1] + exposed)
    return tuple(
        replace(
            group,
            comm_ns=max(0, group.comm_ns - less.get(group.group, (0, 0))[0]),
            exposed_ns=max(0, group.exposed_ns - less.get(group.group, (0, 0))[1]),
        )
        for group in groups
    )
