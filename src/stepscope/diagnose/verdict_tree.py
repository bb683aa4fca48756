"""The parts of a timed step as a tree that adds up: mean time of all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from stepscope.records.finding import VerdictKind, VerdictPart
from stepscope.results.diary import JobSteps, Numbers

RANKS_DIFFER = 0.02
"""Of the step: parts whose ranks are further apart show each rank's."""

ROUNDING = 1e-6
"""Of the step: what is left of it by the rounding of records is no part."""

_CAUSES: Mapping[VerdictKind, str] = {
    "input-bound": "data",
    "communication-bound": "communication",
    "pipeline-bubble": "communication",
    "straggler": "waiting",
    "uneven-work": "waiting",
    "optimizer-bound": "optimizer",
    "compute-bound": "computation",
    "host-bound": "computation",
    "memory-bound": "computation",
}


LEAVES = ("data", "before", "forward", "backward", "optimizer", "transfer", "waiting", "other")
"""Keys of the tree's ends, in the order of a step: before to optimizer are computation, the next two communication."""


def parts_of(steps: JobSteps) -> dict[str, Numbers]:
    """Key of ``LEAVES`` -> [ranks, steps] ns; together they are the step. What was not seen is 0: its time is other's."""
    whole = steps.whole_ns
    named = {name: np.nan_to_num(steps.parts_ns[name]) for name in LEAVES[:5]}
    comm = np.nan_to_num(steps.comm_ns)
    if steps.own_clock.startswith("CPU"):  # waits that Python did not see lie inside forward and backward
        seen = np.minimum(comm, named["forward"] + named["backward"])
        both = np.maximum(named["forward"] + named["backward"], 1.0)
        for name in ("forward", "backward"):
            named[name] = named[name] - seen * named[name] / both
    transfer = np.broadcast_to(np.nan_to_num(steps.transfer_ns), whole.shape)
    other = np.maximum(whole - sum(named.values(), comm), 0.0)
    return {**named, "transfer": transfer, "waiting": comm - transfer, "other": other}


def tree_of(steps: JobSteps, *, cause: VerdictKind, every_rank: bool = False) -> tuple[VerdictPart, ...]:
    """data, computation (before, forward, backward, optimizer), communication (transfer, waiting), other: sum to the step.

    every_rank: each part has all ranks' means, not only where they differ.
    """
    whole, ends = steps.whole_ns, parts_of(steps)
    marked = _CAUSES.get(cause)
    if marked == "data" and ends["data"].sum() < ends["before"].sum():
        marked = "before"

    def part(key: str, values: Numbers, parts: Sequence[VerdictPart] = ()) -> VerdictPart:
        by_rank = values.mean(axis=1)
        differ = steps.ranks > 1 and float(np.ptp(by_rank)) > RANKS_DIFFER * float(whole.mean())
        told = tuple((d.rank, float(ns)) for d, ns in zip(steps.diaries, by_rank, strict=True))
        mean = float(by_rank.mean())
        return VerdictPart(
            key=key,
            ns=mean,
            share=mean / float(whole.mean()),
            parts=tuple(parts),
            by_rank=told if differ or every_rank else (),
            cause=key == marked,
        )

    def group(key: str, names: Sequence[str], *, leave_out: bool) -> VerdictPart:
        values = sum((ends[name] for name in names), np.zeros_like(whole))
        return part(key, values, [part(name, ends[name]) for name in names if ends[name].any() or not leave_out])

    tree = [part("data", ends["data"]), group("computation", LEAVES[1:5], leave_out=True)]
    if steps.world_size > 1:
        tree.append(group("communication", LEAVES[5:7], leave_out=False))
    tree.append(part("other", ends["other"]))
    return tuple(each for each in tree if each.share > ROUNDING)
