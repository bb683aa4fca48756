"""The parts of a timed step as a tree that adds up: mean time of all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from stepscope.records.verdict import VerdictKind, VerdictPart
from stepscope.results.diary import JobSteps, Numbers

RANKS_DIFFER = 0.02
"""Of the step: parts whose ranks are further apart show each rank's."""

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


def tree_of(steps: JobSteps, *, cause: VerdictKind) -> tuple[VerdictPart, ...]:
    """data, computation (before, forward, backward, optimizer), communication (transfer, waiting), other: sum to the step.

    Parts that were not seen are left out: their time is other's.
    """
    whole = steps.whole_ns
    marked = _CAUSES.get(cause)
    if marked == "data" and np.nan_to_num(steps.parts_ns["data"]).sum() < np.nan_to_num(steps.parts_ns["before"]).sum():
        marked = "before"

    def part(key: str, values: Numbers, parts: Sequence[VerdictPart] = ()) -> VerdictPart:
        by_rank = np.nan_to_num(values).mean(axis=1)
        differ = steps.ranks > 1 and float(np.ptp(by_rank)) > RANKS_DIFFER * float(whole.mean())
        ranks = tuple((d.rank, float(ns)) for d, ns in zip(steps.diaries, by_rank, strict=True)) if differ else ()
        mean = float(by_rank.mean())
        return VerdictPart(
            key=key, ns=mean, share=mean / float(whole.mean()), parts=tuple(parts), by_rank=ranks, cause=key == marked
        )

    named = {name: np.nan_to_num(steps.parts_ns[name]) for name in ("before", "forward", "backward", "optimizer")}
    data, comm = np.nan_to_num(steps.parts_ns["data"]), np.nan_to_num(steps.comm_ns)
    if steps.own_clock.startswith("CPU"):  # waits that Python did not see lie inside forward and backward
        seen = np.minimum(comm, named["forward"] + named["backward"])
        both = np.maximum(named["forward"] + named["backward"], 1.0)
        for name in ("forward", "backward"):
            named[name] = named[name] - seen * named[name] / both
    computation = sum(named.values(), np.zeros_like(whole))
    other = np.maximum(whole - data - computation - comm, 0.0)
    tree = [
        part("data", data),
        part("computation", computation, [part(key, values) for key, values in named.items() if values.any()]),
    ]
    if steps.world_size > 1:
        transfer = np.broadcast_to(np.nan_to_num(steps.transfer_ns), whole.shape)
        tree.append(part("communication", comm, [part("transfer", transfer), part("waiting", comm - transfer)]))
    tree.append(part("other", other))
    return tuple(each for each in tree if each.ns > 0)
