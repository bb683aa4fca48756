"""A pipeline as the traces of all its stages show it: who computes how long, what idles, how many micro-batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median

from stepscope.core.dataclass import dataclass
from stepscope.diagnose.trace_facts import read_in_full, unread, window_ns
from stepscope.records.finding import Skipped
from stepscope.records.trace_summary import RankPass, TraceSummary

SLOW = 1.15
"""Times the median of the other stages, from which on a stage is slower than the noise of devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedPipeline:
    """Ranks of pipelines side by side that hold the same stage are one stage.

    micro_batches: of a step, as the job recorded, else as the messages of the outer stages say (one forward and one
    backward each); None where these do not come in pairs. chunks: stages of the model on one rank.
    """

    stages: Sequence[Sequence[RankPass]]
    micro_batches: int | None
    chunks: int = 1

    @property
    def compute_ns(self) -> list[float]:
        """Of each stage, the median of its ranks."""
        return [median(p.budget.parts.compute_ns if p.budget else 0 for p in stage) for stage in self.stages]

    @property
    def slowest(self) -> int:
        compute = self.compute_ns
        return max(range(len(compute)), key=compute.__getitem__)

    @property
    def ratio(self) -> float:
        """Computation of the slowest stage / the median of the others."""
        compute = self.compute_ns
        return compute[self.slowest] / max(median(c for i, c in enumerate(compute) if i != self.slowest), 1)

    @property
    def bubbles(self) -> list[float]:
        """Of each stage, the share of the window in which its ranks idle, or wait in a message that nothing covers."""
        return [median(map(_bubble, stage)) for stage in self.stages]


def traced_pipeline(summary: TraceSummary) -> TracedPipeline | Skipped:
    """The pipeline of a job whose stages are all traced."""
    ranks = {p.facts.rank: p for p in read_in_full(summary)}
    if not ranks:
        return unread(summary, "no rank was read in full")
    chains = _chains(summary)
    if not chains:
        return Skipped(reason="no pipeline: no group carries messages between stages alone")
    if any(rank not in ranks for chain in chains for rank in chain) or len({len(c) for c in chains}) > 1:
        return Skipped(reason="a pipeline's stages are not all among the traces")
    stages = [[ranks[chain[i]] for chain in chains] for i in range(len(chains[0]))]
    recorded = {p.facts.setup.micro_batches for stage in stages for p in stage if p.facts.setup is not None} - {None}
    chunks = {p.facts.setup.chunks or 1 for stage in stages for p in stage if p.facts.setup is not None}
    if len(recorded) == 1:
        return TracedPipeline(stages=stages, micro_batches=recorded.pop(), chunks=max(chunks, default=1))
    counted = {m for stage in (stages[0], stages[-1]) for p in stage if (m := _micro_batches(p)) is not None}
    return TracedPipeline(stages=stages, micro_batches=min(counted) if len(counted) == 1 else None)


def _micro_batches(each: RankPass) -> int | None:
    """Of a stage with one neighbour: half of its messages a step."""
    pipes = {g.group for g in each.groups if g.kind == "pp"}
    calls = each.communication.collectives if each.communication is not None else ()
    of_step: dict[int, int] = defaultdict(int)
    for call in calls:
        if call.op == "send_recv" and call.step is not None and call.group is not None and call.group.name in pipes:
            of_step[call.step] += 1
    usual = median(of_step.values()) if of_step else 0
    return int(usual) // 2 if usual >= 2 and usual == int(usual) and not int(usual) % 2 else None


def _bubble(each: RankPass) -> float:
    """Share of the window in which the rank idles, or waits in a message that nothing covers."""
    assert each.budget is not None
    messages = sum(g.exposed_ns for g in each.groups if g.kind == "pp")
    return (min(messages, each.budget.parts.exposed_comm_ns) + each.budget.parts.idle_ns) / window_ns(each)


def _chains(summary: TraceSummary) -> list[tuple[int, ...]]:
    """Ranks that exchange messages in groups that carry nothing else, connected, ascending."""
    linked: dict[int, set[int]] = defaultdict(set)
    for each in summary.ranks:
        pipes = {g.group for g in each.groups if g.kind == "pp"}
        only = len(each.groups) == len(pipes)
        for call in each.communication.collectives if each.communication and pipes else ():
            if call.op != "send_recv" or call.group is None or call.group.name not in pipes:
                continue
            ranks: Iterable[int] = call.peers or call.group.ranks or ()
            whole = call.peers is None and len(tuple(ranks)) == summary.world_size and not only
            for other in () if whole else ranks:
                linked[each.facts.rank].add(other)
                linked[other].add(each.facts.rank)
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
