"""Every device reduces its part from, and returns it to, all others at once over a full mesh (MSCCL in RCCL)."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.predict.collectives import tuning_nccl, tuning_rccl
from stepscope.predict.collectives.algorithms._common import LL, Algorithm, Candidate, collective, transfer_us
from stepscope.predict.collectives.machine import Place


def _candidates(op: str, size_bytes: int, place: Place) -> Iterator[Candidate]:
    if not place.all_pairs:
        return
    algorithm = "direct" if op == "all_to_all" else "ring"  # the wire bytes are a ring's
    wire = collective(op).wire_bytes(size_bytes, world_size=place.ranks, algorithm=algorithm)
    steps = 2 if op == "all_reduce" else 1
    yield Candidate(
        algorithm="all_pairs",
        protocol="LL",
        latency_us=tuning_rccl.RING.base_us[LL] + steps * tuning_rccl.RING.link_us[LL],
        transfer_us=transfer_us(wire, place.spread * tuning_nccl.LL_RATE),
        limit="links",
    )


ALGORITHM = Algorithm(
    key="all_pairs",
    summary="parts from and to all others at once",
    ops=("all_reduce", "all_gather", "all_to_all"),
    candidates=_candidates,
)
