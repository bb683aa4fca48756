"""The root ends with the tensors of all ranks. S: bytes at the root, of all ranks."""

from __future__ import annotations

from stepscope.collectives._common import Collective, Cost

COLLECTIVE = Collective(
    key="gather",
    summary="the root gets the tensors of all ranks, one after the other",
    bus_factor=lambda n: (n - 1) / n,
    rooted=True,
    together=False,
    parts="world",
    costs={
        "direct": Cost(
            steps=lambda n: min(1, n - 1),
            wire_factor=lambda n: (n - 1) / n,
            source="all ranks send to the root at once, which receives (n - 1) / n S",
        ),
        "gloo": Cost(
            steps=lambda n: min(1, n - 1),
            wire_factor=lambda n: (n - 1) / n,
            source="measured, torch 2.13 gloo on shaped links, 2026-11: 0.50 S at n = 2, 0.75 S at n = 4",
        ),
    },
)
