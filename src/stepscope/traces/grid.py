"""Which ranks of a job do the same work: those of one stage of its pipeline, all where it has none.

A rank of a grid (tensor x pipeline x data parallel) is compared with these alone. Which rank comes last to a collective
proves nothing there: stages end at different times, and a rank that waits for a late one is late itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from stepscope.records.trace_collectives import MatchedCollective
from stepscope.records.trace_summary import RankPass

Stage = tuple[int, ...]
"""Ranks of one stage, ascending by pipeline."""


def chains_of(ranks: Sequence[RankPass], world_size: int | None) -> list[tuple[int, ...]]:
    """Return the pipelines: ranks that exchange messages in groups that carry nothing else, connected, ascending."""
    linked: dict[int, set[int]] = defaultdict(set)
    for rank in ranks:
        pipes = {g.group for g in rank.groups if g.kind == "pp"}
        only = len(rank.groups) == len(pipes)
        for call in rank.communication.collectives if rank.communication and pipes else ():
            if call.op != "send_recv" or call.group is None or call.group.name not in pipes:
                continue
            members: Iterable[int] = call.peers or call.group.ranks or ()
            whole = call.peers is None and len(tuple(members)) == world_size and not only
            for other in () if whole else members:
                linked[rank.facts.rank].add(other)
                linked[other].add(rank.facts.rank)
    chains: list[tuple[int, ...]] = []
    left = set(linked)
    while left:
        chain, edge = set[int](), {min(left)}
        while edge:
            chain |= edge
            edge = {n for rank in edge for n in linked[rank]} - chain
        left -= chain
        if len(chain) > 1:
            chains.append(tuple(sorted(chain)))
    return chains


def stages_of(chains: Sequence[tuple[int, ...]]) -> tuple[Stage, ...]:
    """Return the ranks of each stage; none without a pipeline, or where pipelines differ in length."""
    if not chains or len({len(chain) for chain in chains}) > 1:
        return ()
    return tuple(zip(*chains, strict=True))


def is_grid(split: Sequence[MatchedCollective]) -> bool:
    """Whether ranks meet in different sets, so that lateness is passed on from one to another."""
    return len({frozenset(r.rank for r in m.ranks) for m in split if m.complete}) > 1


def within(stages: Sequence[Stage], split: Sequence[MatchedCollective]) -> list[MatchedCollective]:
    """Return the collectives of ranks that do the same work; all where there are no stages."""
    if not stages:
        return list(split)
    stage_of = {rank: at for at, stage in enumerate(stages) for rank in stage}
    return [m for m in split if len({stage_of.get(r.rank, -1 - r.rank) for r in m.ranks}) == 1]
