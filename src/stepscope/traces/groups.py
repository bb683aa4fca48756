"""Process groups of a rank's trace: what arguments name, completed from distributedInfo.pg_config; and what
each carries: data, tensor, pipeline, expert or context parallel traffic.

Communication of one rank by process group: data, tensor, pipeline parallel traffic apart.
"""

from __future__ import annotations

import copyreg
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache

from stepscope.records.trace_collectives import CollectiveGroup, RankCollective
from stepscope.traces.events import CollectiveArgs, ProcessGroup, TraceMeta

_RANKS = re.compile(r"\[\s*\d+(?:\s*,\s*\d+)*\s*\]\Z")


class Groups:
    """Looks up groups by what a collective's arguments say; each group is one object, shared."""

    def __init__(self, meta: TraceMeta, rank: int | None = None) -> None:
        self.rank = rank if rank is not None else meta.rank
        self.world_size = meta.world_size
        self._recorded = {g.name: _from_config(g) for g in meta.groups}
        self._gloo = [self._recorded[g.name] for g in meta.groups if "gloo" in g.backend or not g.backend]
        self._resolved: dict[tuple[str, str, str, int | None], CollectiveGroup] = {}

    @property
    def only(self) -> CollectiveGroup | None:
        """The job's single group; None when there are several, or none is recorded."""
        return next(iter(self._recorded.values())) if len(self._recorded) == 1 else None

    @property
    def on_gloo(self) -> list[CollectiveGroup]:
        """Groups that run on gloo, in order of creation."""
        return self._gloo

    def of(self, args: CollectiveArgs | None) -> CollectiveGroup | None:
        """The group that the arguments name; without any, the only one there is. None when it cannot be told."""
        if args is None or (args.group_name is None and args.group_ranks is None):
            return self.only
        key = (args.group_name or "", args.group_description or "", args.group_ranks or "", args.group_size)
        if key not in self._resolved:
            self._resolved[key] = self._completed(args)
        return self._resolved[key]

    def taking_part(
        self, args: CollectiveArgs | None, by_shapes: int | None
    ) -> tuple[CollectiveGroup | None, int | None]:
        """The group of a call and the number of ranks in it: as the arguments name it, else by the shapes of its buffers.

        The job's only recorded group stands in where nothing contradicts it. Never the world's size: a call that names
        no group may be of any.
        """
        group = self.of(args)
        named = args is not None and (args.group_name is not None or args.group_ranks is not None)
        stated = args.group_size if args else None
        if named and group is not None and group.size is not None:
            return group, group.size
        ranks = stated or by_shapes
        if not named and group is not None and ranks not in (None, group.size):
            group = None
        return group, ranks or (group.size if group else None)

    def _completed(self, args: CollectiveArgs) -> CollectiveGroup:
        """Return the group that arguments name, with size and ranks from the metadata where they lack; ranks that
        contradict are left out."""
        recorded = self._recorded.get(args.group_name or "")
        ranks = ranks_in(args.group_ranks) or (recorded.ranks if recorded else None)
        size = args.group_size
        if size is None:
            size = len(ranks) if ranks else recorded.size if recorded else None
        if ranks is not None and size is not None and len(ranks) != size:
            ranks = None
        description = args.group_description or (recorded.description if recorded else "")
        return shared(args.group_name or "", description, size, _short_members(ranks))


def ranks_in(text: str | None) -> tuple[int, ...] | None:
    """``[0, 1, 2]`` -> ranks; None for a list that the profiler shortened (``[0, 1, ...]``) or that is empty."""
    if text is None or not _RANKS.match(text.strip()):
        return None
    return tuple(int(r) for r in text.strip()[1:-1].split(","))


def _from_config(group: ProcessGroup) -> CollectiveGroup:
    ranks = group.ranks if group.size in (None, len(group.ranks)) else ()
    size = group.size if group.size is not None else len(group.ranks) or None
    return shared(group.name, group.description, size, _short_members(ranks or None))


Members = range | tuple[int, ...] | None


@lru_cache(maxsize=4096)
def shared(name: str, description: str, size: int | None, ranks: Members) -> CollectiveGroup:
    """One object for all ranks of a job, which lists its members once: thousands of ranks each know all the others."""
    return CollectiveGroup(
        name=name, description=description, size=size, ranks=tuple(ranks) if ranks is not None else None
    )


def _short_members(ranks: tuple[int, ...] | None) -> Members:
    """The same members as a range where they are evenly spaced, as those of meshes are."""
    if ranks is None or len(ranks) < 2 or ranks[1] <= ranks[0]:
        return ranks
    spaced = range(ranks[0], ranks[-1] + 1, ranks[1] - ranks[0])
    return spaced if len(spaced) == len(ranks) and tuple(spaced) == ranks else ranks


def _reduced_group(group: CollectiveGroup) -> tuple[Callable[..., CollectiveGroup], tuple[object, ...]]:
    return shared, (group.name, group.description, group.size, _short_members(group.ranks))


copyreg.pickle(CollectiveGroup, _reduced_group)  # a rank's pass travels between processes


UNNAMED = ""
"""Stands for collectives whose group was not recorded."""


def group_name(call: RankCollective) -> str:
    return call.group.name if call.group else UNNAMED


NOT_SHARDED = ("tp", "pp", "ep", "cp")
"""Kinds of groups whose gathers are not those of sharded parameters."""

_WORDS: tuple[tuple[str, str], ...] = (
    ("dp", r"data_parallel|(?:^|_)h?s?e?dp(?:_|$)|ddp|fsdp|dp_(?:shard|replicate)|zero|replicate"),
    ("tp", r"tensor|(?:^|_)e?tp(?:_|$)|(?:^|_)sp(?:_|$)|sequence_parallel"),
    ("pp", r"pipe|(?:^|_)pp(?:_|$)|embedding"),
    ("cp", r"context|(?:^|_)cp(?:_|$)|ring|ulysses"),
    ("ep", r"expert|(?:^|_)ep(?:_|$)|moe"),
)
"""Kind, and what descriptions of its groups hold in torch (``mesh_tp``), torchtitan (``mesh_dp_shard_cp``), DeepSpeed and
Megatron (``EXPERT_DATA_PARALLEL_GROUP`` reduces gradients of experts). The earliest line that matches decides."""

IN_EACH_PASS = 0.25
"""From this share of a group's all-reduces in the forward pass, and in what follows it, on, layers need them: metrics and
norms are fewer, and have none in the backward pass."""


def kind_by_name(group: CollectiveGroup | None) -> str:
    """Return dp | tp | pp | ep | cp as the group's description says, else its name; empty where neither does."""
    for text in (group.description, group.name) if group is not None else ():
        words = re.sub(r"[^a-z0-9]+", "_", text.lower())
        meaning = next((kind for kind, pattern in _WORDS if re.search(pattern, words)), "")
        if meaning:
            return meaning
    return ""


def kind_by_operations(calls: Sequence[RankCollective], forward: Sequence[bool]) -> str:
    """Return the kind by what the group does; ``forward``: launched in the forward pass. Empty where that is unclear.

    Messages alone: pipeline. Exchanges of all with all alone: experts. Gathers with reduce-scatters of the backward
    pass alone: sharded data parallel; of both passes: tensor parallel with a split sequence. Reductions of both
    passes, with or without gathers (of scores): tensor; of what follows the forward pass alone: data.
    """
    count = Counter(c.op for c in calls if c.op not in ("broadcast", "barrier"))
    ahead = Counter(c.op for c, first in zip(calls, forward, strict=True) if first)
    ops = set(count)
    if not ops or "unknown" in ops:
        return ""
    if ops == {"send_recv"}:
        return "pp"
    if ops <= {"all_to_all", "all_to_all_v"}:
        return "ep"
    if {"all_gather", "reduce_scatter"} <= ops <= {"all_gather", "reduce_scatter", "all_reduce"}:
        return "tp" if ahead["reduce_scatter"] else "dp"
    if "all_reduce" in ops and ops <= {"all_reduce", "all_gather"}:
        share = ahead["all_reduce"] / count["all_reduce"]
        if IN_EACH_PASS <= share <= 1 - IN_EACH_PASS:
            return "tp"
        return "dp" if not share and "all_gather" not in ops else ""
    return ""
