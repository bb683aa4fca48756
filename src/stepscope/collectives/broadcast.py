"""Every rank ends with the root's tensor. S: bytes of the tensor."""

from __future__ import annotations

import math

from stepscope.collectives._common import Collective, Cost


def _gloo_steps(n: int) -> int:
    """Most ones in the binary form of a rank below n: each is one hop, the sends of one rank start together."""
    return n.bit_length() - 1


def _gloo_wire_factor(n: int) -> float:
    """The longest chain of whole copies, in which a rank's copies to its k children share its link: k S each."""
    levels = math.ceil(math.log2(n))
    received = {0: 0.0}
    for rank in range(n):
        children = [rank | 1 << bit for bit in range(rank.bit_length(), levels) if rank | 1 << bit < n]
        received.update(dict.fromkeys(children, received[rank] + len(children)))
    return max(received.values())


COLLECTIVE = Collective(
    key="broadcast",
    summary="every rank gets the root's tensor",
    bus_factor=lambda n: 1.0,  # noqa: ARG005 - the same for every world
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
            source="whole tensors, the number of ranks that have it doubles in each round",
        ),
        "gloo": Cost(
            steps=_gloo_steps,
            wire_factor=_gloo_wire_factor,
            source=(
                "a binomial tree in which a rank sends to all its children at once, so that they share its link; "
                "measured, torch 2.13 gloo on shaped links, 2026-11: 1.00 S at n = 2, 3.00 S at n = 4"
            ),
        ),
    },
)
