"""Every rank ends with the reduction of all ranks' tensors. S: bytes of the tensor."""

from __future__ import annotations

import math

from stepscope.collectives._common import Collective, Cost

COLLECTIVE = Collective(
    key="all_reduce",
    summary="every rank gets the reduction of all tensors",
    bus_factor=lambda n: 2 * (n - 1) / n,
    reduces=True,
    out_of_place=False,
    costs={
        "ring": Cost(
            steps=lambda n: 2 * (n - 1),
            wire_factor=lambda n: 2 * (n - 1) / n,
            source="reduce-scatter, then all-gather around a ring",
        ),
        "tree": Cost(
            steps=lambda n: 2 * math.ceil(math.log2(n)),
            wire_factor=lambda n: 2.0 if n > 1 else 0.0,
            source="pipelined reduce up and broadcast down a binary tree",
        ),
        "gloo": Cost(
            steps=lambda n: 2 * (n - 1),
            wire_factor=lambda n: 2 * (n - 1) / n,
            source="measured, torch 2.13 gloo on shaped links, 2026-11: 1.00 S at n = 2, 1.51 S at n = 4",
        ),
    },
)
