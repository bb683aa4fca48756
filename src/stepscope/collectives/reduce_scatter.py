"""Every rank ends with its part of the reduction of all ranks' tensors. S: bytes of the whole input."""

from __future__ import annotations

from stepscope.collectives._common import Collective, Cost

_GLOO_EXCESS = 1.1  # 1.49 to 1.97 measured at n = 4 on several days, over the 1.5 that the ring moves


def _gloo_wire_factor(n: int) -> float:
    ring = 2 * (n - 1) / n
    return ring if n <= 2 else ring * _GLOO_EXCESS


COLLECTIVE = Collective(
    key="reduce_scatter",
    summary="every rank gets its part of the reduction of all tensors",
    bus_factor=lambda n: (n - 1) / n,
    reduces=True,
    parts="world",
    costs={
        "ring": Cost(
            steps=lambda n: n - 1,
            wire_factor=lambda n: (n - 1) / n,
            source="each part travels n - 1 hops around a ring and is reduced at each",
        ),
        "gloo": Cost(
            steps=lambda n: 2 * (n - 1),
            wire_factor=_gloo_wire_factor,
            source=(
                "runs as an all_reduce of the whole input: 2 (n - 1) / n S; measured, torch 2.13 gloo on shaped links, "
                f"2026-11: 1.02 to 1.09 S at n = 2, 1.49 to 1.97 S at n = 4 (reduced by cores that ranks share); the "
                f"excess, {_GLOO_EXCESS:g} times, is the middle of that and kept for n > 2"
            ),
        ),
    },
)
