"""No rank leaves before all have entered. No payload: the time is a latency."""

from __future__ import annotations

import math

from stepscope.collectives._common import Collective, Cost

COLLECTIVE = Collective(
    key="barrier",
    summary="no rank leaves before all have entered",
    bus_factor=lambda n: 0.0,  # noqa: ARG005 - nothing is carried
    has_payload=False,
    costs={
        "dissemination": Cost(
            steps=lambda n: math.ceil(math.log2(n)),
            wire_factor=lambda n: 0.0,  # noqa: ARG005 - nothing is carried
            source="in round k every rank tells the one 2^k places after it",
        ),
        "gloo": Cost(
            steps=lambda n: math.ceil(math.log2(n)),
            wire_factor=lambda n: 0.0,  # noqa: ARG005 - nothing is carried
            source="dissemination; steps measured, torch 2.13 gloo on delayed links, 2026-11, at n = 2, 3, 4",
        ),
    },
)
