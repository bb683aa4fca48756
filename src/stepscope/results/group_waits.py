"""Exposed communication of a job by process group and operation, from what its ranks waited for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np

from stepscope.core.words import counted, grouped
from stepscope.records.finding import GroupWait
from stepscope.records.profile import GroupWaits
from stepscope.results.diary import JobSteps

TOGETHER = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
"""Operations that no rank leaves before the last one has come: the rank that waits shortest came last."""

_DEFAULT = "default_pg"
_NAMELESS = ("", "undefined")


def group_waits(steps: JobSteps) -> tuple[GroupWait, ...]:
    """Return the waits by group and operation, the longest first; none where all is one group in one operation.

    The exposed communication of the timed steps, in the mean of all ranks, is divided as the waits of all steps are. Groups
    that have the same name and size (the tensor-parallel groups of all replicas) are one. Waiting is what a rank waits
    beyond the one of its group that waits shortest, where all ranks of the group are known.
    """
    exposed = float(np.nan_to_num(steps.comm_ns).mean()) if steps.steps else 0.0
    by_rank = {diary.rank: diary.groups for diary in steps.diaries if diary.groups is not None and diary.groups.steps}
    rows = [
        (
            _group_name(group, steps.world_size),
            group.ranks,
            operation,
            rank,
            ns / recorded.steps,
            calls / recorded.steps,
        )
        for rank, recorded in by_rank.items()
        for group in recorded.groups
        for operation, (calls, ns) in group.operations.items()
    ]
    all_ns = sum(row[4] for row in rows)
    if not all_ns or not exposed:
        return ()
    scale = exposed * len(by_rank) / all_ns
    waits = []
    for (name, size, operation), same in grouped(rows, lambda row: (row[0], len(row[1]), row[2])).items():
        of_rank = {(ranks, rank): scale * ns for _, ranks, _, rank, ns, _ in same}
        waits.append(
            GroupWait(
                group=name,
                ranks=size or None,
                operation=operation,
                of_ranks=len({row[3] for row in same}),
                ns=sum(of_rank.values()) / len(by_rank),
                waiting_ns=_group_waiting_ns(of_rank, len(by_rank)) if operation in TOGETHER else None,
                calls=fmean(row[5] for row in same),
            )
        )
    waits.sort(key=lambda wait: -wait.ns)
    return tuple(waits) if len(waits) > 1 else ()


def _group_waiting_ns(of_rank: Mapping[tuple[tuple[int, ...], int], float], ranks: int) -> float | None:
    """Return the ns that a rank waits, mean of all ranks: what each takes beyond the shortest of its group; None: a rank
    is unknown."""
    total = 0.0
    for members, same in grouped(of_rank.items(), lambda item: item[0][0]).items():
        if not members or len(same) < len(members):
            return None
        times: Sequence[float] = [ns for _, ns in same]
        total += sum(times) - len(times) * min(times)
    return total / ranks


def _group_name(group: GroupWaits, world_size: int) -> str:
    """Name a group as its user knows it: ``tp`` of the mesh's dimension, ``all ranks``, ``4 ranks without a name``."""
    name = re.sub(r"^mesh_(?!dim_)", "", group.name)
    if name == _DEFAULT or (name in _NAMELESS and len(group.ranks) == world_size):
        return "all ranks"
    if name in _NAMELESS:
        return f"{counted(len(group.ranks), 'rank')} without a name" if group.ranks else "unknown"
    return name
