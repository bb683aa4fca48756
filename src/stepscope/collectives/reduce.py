"""The root ends with the reduction of all ranks' tensors. S: bytes of the tensor."""

from __future__ import annotations

import math

from stepscope.collectives._common import Collective, Cost


def _gloo_wire_factor(n: int) -> float:
    if n == 2:  # both directions of the ring share one connection: a quarter waits
        return 1.25
    return 2 * (n - 1) / n


COLLECTIVE = Collective(
    key="reduce",
    summary="the root gets the reduction of all tensors",
    bus_factor=lambda n: 1.0,  # noqa: ARG005 - the same for every world
    reduces=True,
    rooted=True,
    together=False,
    out_of_place=False,
    costs={
        "chain": Cost(
            steps=lambda n: n - 1,
            wire_factor=lambda n: 1.0 if n > 1 else 0.0,
            source="pipelined from rank to rank: each link carries the tensor once",
        ),
        "binomial": Cost(
            steps=lambda n: math.ceil(math.log2(n)),
            wire_factor=lambda n: float(math.ceil(math.log2(n))),
            source="whole tensors, the number of ranks that still hold a part halves in each round",
        ),
        "gloo": Cost(
            steps=lambda n: n if n > 1 else 0,
            wire_factor=_gloo_wire_factor,
            source=(
                "a ring reduce-scatter, then all parts go to the root: 2 (n - 1) / n S; measured, torch 2.13 gloo on "
                "shaped links, 2026-11: 1.25 S at n = 2, where both directions share a connection, 1.51 S at n = 4"
            ),
        ),
    },
)
