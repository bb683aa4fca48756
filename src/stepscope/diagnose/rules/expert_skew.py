"""Experts are loaded unevenly: ranks wait in all-to-all for the one that got most tokens.

What
----
Exchanges of all ranks with all (mixture of experts) seen on several ranks. One is skewed when the rank that comes last in
it also exchanges most, {hot} or more. Fires when {of the waiting} is in skewed ones
and it takes {of the window}, of what no computation covers.

Why
---
The experts of a rank compute in proportion to the tokens routed to them; the exchange back begins for all when the last
one has finished.

Known problems
--------------
Needs the sizes of the exchanges by rank. Routing that pads every expert to one capacity sends even sizes and is not
judged; a rank that is slow for another reason is `straggler`'s.

References
----------
Fedus et al., Switch Transformers, JMLR 2022, section 2.2 (load balancing, capacity factor); Lepikhin et al., GShard, 2020.
"""

from __future__ import annotations

from collections import Counter
from statistics import fmean

from stepscope.core.units import format_percent
from stepscope.diagnose.frameworks import in_words_of, used_in
from stepscope.diagnose.rule import Limit, Rule, Statement, advise, finding, skipped
from stepscope.diagnose.trace_facts import unread, window_ns
from stepscope.records.trace_collectives import MatchedCollective
from stepscope.records.trace_summary import TraceSummary
from stepscope.results.evidence import TraceEvidence
from stepscope.traces.waits import exposed_waiting, waits_of

_EXCHANGES = ("all_to_all", "all_to_all_v")
_HOT = Limit(1.25, unit="times the mean bytes", source="Fedus et al. 2022: the usual capacity factor")
_HALF = Limit(0.5, unit="of the waiting in exchanges", source="stepscope's choice, 2026-11: most of it")
_WORTH = Limit(0.05, unit="share of the window", source="stepscope's choice, 2026-11: routing can be balanced")


def _expert_skew_of_job(job: TraceEvidence) -> Statement:
    """Look in one traced job for: ranks wait in all-to-all for the one with the hot expert."""
    summary = job.summary
    if summary.collectives is None:
        return unread(summary, "no collective was recorded")
    kinds = {g.group: g.kind for p in summary.ranks for g in p.groups}
    exchanges = [
        i
        for i in summary.collectives.instances
        if i.op in _EXCHANGES and kinds.get(i.group.name if i.group else "") not in ("cp", "tp")
    ]
    split = [i for i in exchanges if i.transfer_ns is not None and i.complete]
    if not split:
        return skipped("no exchange was seen on all of its ranks" if exchanges else "no exchange of all ranks with all")
    sized = [(i, sizes) for i in split if (sizes := _exchanged_bytes(summary, i)) is not None]
    if not sized:
        return skipped("the sizes of the exchanges are not recorded")
    skewed = [
        (i, sizes)
        for i, sizes in sized
        if i.last_rank is not None and sizes[i.last_rank] == max(sizes.values()) >= _HOT * fmean(sizes.values())
    ]
    waits = waits_of(summary.collectives)
    waiting = sum(exposed_waiting(i, waits) for i in split)
    for_hot = sum(exposed_waiting(i, waits) for i, _ in skewed)
    of_all = for_hot / waiting if waiting else 0.0
    share = for_hot / sum(window_ns(p) for p in summary.ranks if p.budget is not None)
    sentence = f"{len(skewed)} of {len(sized)} exchanges wait for the rank that exchanges most"
    if of_all < _HALF or share < _WORTH:
        return f"{sentence}: {_WORTH.of(share)}, limit {format_percent(_WORTH)}"
    last = Counter(i.last_rank for i, _ in skewed)
    rank, times = last.most_common(1)[0]
    one = times >= _HALF * len(skewed)
    ratio = fmean(max(sizes.values()) / fmean(sizes.values()) for _, sizes in skewed)
    who = f"rank {rank} has a hot expert" if one else "experts are loaded unevenly"
    return finding(
        f"{who}: the others wait {_WORTH.of(share)} in all-to-all",
        f"{sentence}, {ratio:.2f} times the mean",
        f"that is {format_percent(of_all)} of the waiting in exchanges; who comes last: "
        + ", ".join(f"rank {r} in {n}" for r, n in last.most_common(4)),
        stake=min(1.0, share),
        ranks=tuple(r for r, _ in last.most_common(1 if one else 4) if r is not None),
        confidence="measured: sizes and arrivals; that tokens make it late is an inference",
        advice=[
            advise(
                "balance the router: an auxiliary loss or a bias by load, a capacity factor near 1",
                key="balance experts",
            ),
            in_words_of("balance experts", used_in(summary)),
            advise(
                "place hot experts on different ranks, or replicate them",
                "--show collectives,stragglers",
                key="balance experts",
            ),
        ],
        of=f"rank {rank}" if one else None,
    )


def _exchanged_bytes(summary: TraceSummary, instance: MatchedCollective) -> dict[int, int] | None:
    """Bytes that each rank exchanges; None where one is unknown."""
    by_rank = {p.facts.rank: p.communication for p in summary.ranks if p.communication is not None}
    recorded = {r.rank: by_rank[r.rank].collectives[r.position].size_bytes for r in instance.ranks if r.rank in by_rank}
    sizes = {rank: size for rank, size in recorded.items() if size}
    return sizes if len(sizes) == len(instance.ranks) else None


RULE = Rule(
    symptom="ranks wait in all-to-all for the one with the hot expert",
    look_at_job=_expert_skew_of_job,
    claims=("waiting",),
    protocol=2,
    thresholds={"hot": _HOT, "of the waiting": _HALF, "of the window": _WORTH},
)
