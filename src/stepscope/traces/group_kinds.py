"""What a process group carries: data, tensor, pipeline, expert or context parallel traffic."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from stepscope.records.trace_collectives import CollectiveGroup, RankCollective

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
    """dp | tp | pp | ep | cp as the group's description says, else its name; empty where neither does."""
    for text in (group.description, group.name) if group is not None else ():
        words = re.sub(r"[^a-z0-9]+", "_", text.lower())
        found = next((kind for kind, pattern in _WORDS if re.search(pattern, words)), "")
        if found:
            return found
    return ""


def kind_by_operations(calls: Sequence[RankCollective], forward: Sequence[bool]) -> str:
    """The same from what the group does; ``forward``: launched in the forward pass. Empty where that is unclear.

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
