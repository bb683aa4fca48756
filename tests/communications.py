"""Collectives of ranks made by hand, for tests of what happens between ranks.

ranks = job([[Met("all_reduce", starts={0: 0, 1: 500}, end=2_000)], ...])
rank(3, [collective("all_reduce", 0, 100)])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stepscope.records.trace_collectives import (
    CollectiveGroup,
    ExactSpans,
    OwnTime,
    RankCollective,
    RankCommunication,
)
from stepscope.stats.spans import union
from stepscope.traces.waits import exact


@dataclass(frozen=True, kw_only=True)
class Met:
    """One collective in true time; every rank in ``starts`` leaves it at ``end``.

    own: by rank, parts in ns; None: it computes from the end of the one before.
    """

    starts: Mapping[int, int]
    end: int
    op: str = "all_reduce"
    size_bytes: int | None = 1_000_000
    sequence: int | None = None
    comms_id: int | None = None
    group: CollectiveGroup | None = None
    step: int | None = None
    own: Mapping[int, Mapping[str, int]] | None = None
    peers: tuple[int, int] | None = None


def group(name: str, ranks: Sequence[int]) -> CollectiveGroup:
    return CollectiveGroup(name=name, description="", size=len(ranks), ranks=tuple(ranks))


def own_time(own_ns: int, **parts: int) -> OwnTime:
    """Parts as given, the rest computation."""
    names = ("memory", "host_late", "sync", "data", "launch_latency", "kernel_gap", "dependency", "unknown")
    given = {f"{n}_ns": parts.get(n, 0) for n in names}
    compute = parts.get("compute", own_ns - sum(given.values()))
    return OwnTime(own_ns=own_ns, compute_ns=compute, from_window_start=False, **given)


def collective(op: str, start: int, end: int, **changes: Any) -> RankCollective:
    plain = RankCollective(
        op=op,
        op_source="arguments",
        kernel=f"ncclDevKernel_{op}",
        dtype="float32",
        size_bytes=1_000_000,
        group=None,
        sequence=None,
        comms_id=None,
        direction=None,
        peers=None,
        start_ns=start,
        end_ns=end,
        launch_ns=None,
        stream=20,
        step=None,
        exposed_ns=end - start,
        hidden_under=(),
        own=own_time(0),
    )
    return replace(plain, **changes)


def _exposed(collectives: Sequence[RankCollective]) -> ExactSpans:
    """As if each computes at its end for what is not exposed."""
    edges = np.array([(c.start_ns, c.start_ns + c.exposed_ns) for c in collectives], dtype=np.int64).reshape(-1, 2)
    return exact(union(edges[:, 0], edges[:, 1]))


def rank(number: int, collectives: Sequence[RankCollective], **changes: Any) -> RankCommunication:
    plain = RankCommunication(
        rank=number,
        host=None,
        world_size=None,
        source="device",
        base_time_ns=None,
        window_ns=(collectives[0].start_ns, collectives[-1].end_ns) if collectives else None,
        collectives=tuple(collectives),
        exposed=_exposed(collectives),
    )
    return replace(plain, **changes)


def job(
    met: Sequence[Met], *, clocks: Mapping[int, tuple[int, float]] | None = None, **changes: Any
) -> list[RankCommunication]:
    """Every rank's view of the collectives, on its own clock: rank -> (offset in ns, drift)."""
    clocks = clocks or {}

    def shown(rank_number: int, time: int) -> int:
        offset, drift = clocks.get(rank_number, (0, 0.0))
        return time + offset + round(drift * time)

    parts: dict[int, list[RankCollective]] = {}
    left: dict[int, int] = {}
    for m in met:
        for number, start in m.starts.items():
            parts.setdefault(number, []).append(
                collective(
                    m.op,
                    shown(number, start),
                    shown(number, m.end),
                    size_bytes=m.size_bytes,
                    sequence=m.sequence,
                    comms_id=m.comms_id,
                    group=m.group,
                    step=m.step,
                    peers=m.peers,
                    own=own_time(max(0, start - left.get(number, 0)))
                    if m.own is None
                    else own_time(**{"own_ns": 0, **m.own[number]}),
                )
            )
        left |= {number: max(m.end, left.get(number, 0)) for number in m.starts}
    world = len(parts)
    return [rank(n, sorted(parts[n], key=lambda c: c.start_ns), world_size=world, **changes) for n in sorted(parts)]
