"""Every rank sends a part of its tensor to every rank. S: bytes of the whole input of one rank."""

from __future__ import annotations

from stepscope.collectives._common import Collective, Cost


def _gloo_wire_factor(n: int) -> float:
    full_duplex = (n - 1) / n
    # Of two ranks half a ring apart one sends first: even worlds have such pairs, and they cost 2 (n - 1) / n parts.
    return full_duplex if n % 2 else full_duplex * (n + 2) / n


COLLECTIVE = Collective(
    key="all_to_all",
    summary="every rank sends one part of its tensor to each rank",
    bus_factor=lambda n: (n - 1) / n,
    parts="world",
    in_place=False,  # a part may arrive before the one in its place has left
    costs={
        "direct": Cost(
            steps=lambda n: n - 1,
            wire_factor=lambda n: (n - 1) / n,
            source="one part to each peer in turn",
        ),
        "gloo": Cost(
            steps=lambda n: min(1, n - 1),
            wire_factor=_gloo_wire_factor,
            source=(
                "all parts at once, each connection in one direction after the other; fair sharing of the links gives "
                "(n - 1) / n S for odd n, (n - 1) (n + 2) / n^2 S for even n; measured, torch 2.13 gloo on shaped links, "
                "2026-11: 0.99 S at n = 2, 1.12 to 1.25 S at n = 4 (1.13 by the formula)"
            ),
        ),
    },
)
