"""Messages from rank to rank. S: bytes of one message.

uni: 0 -> 1, 2 -> 3, ...; bi: the same pairs, both ways at once; ring: every rank sends to the next one and receives from
the one before. In an odd world the last rank has no partner in ``uni`` and ``bi`` and does nothing.
"""

from __future__ import annotations

from stepscope.collectives._common import Collective, Cost

_HALF_DUPLEX = "isend and irecv with the same peer take turns on its connection"
_MEASURED = "measured, torch 2.13 gloo on shaped links, 2026-11"

COLLECTIVE = Collective(
    key="send_recv",
    summary="messages from rank to rank: one way, both ways or around a ring",
    bus_factor=lambda n: 1.0,  # noqa: ARG005 - the same for every world
    together=False,
    in_place=False,
    patterns=("uni", "bi", "ring"),
    min_world=2,
    costs={
        "direct": Cost(
            steps=lambda n: min(1, n - 1),
            wire_factor=lambda n: 1.0 if n > 1 else 0.0,
            source="one message on every link, both directions of a link at once",
        ),
        "gloo": Cost(
            steps=lambda n: min(1, n - 1),
            wire_factor=lambda n: 1.0 if n > 1 else 0.0,
            source=f"pattern uni; {_MEASURED}: 1.00 S",
        ),
        "gloo_bi": Cost(
            steps=lambda n: min(1, n - 1),
            wire_factor=lambda n: 2.0 if n > 1 else 0.0,
            source=f"pattern bi; {_HALF_DUPLEX}; {_MEASURED}: 2.0 S",
        ),
        "gloo_ring": Cost(
            steps=lambda n: min(1, n - 1),
            wire_factor=lambda n: 0.0 if n == 1 else 2.0 if n == 2 else 1.15,
            source=f"pattern ring; at n = 2 {_HALF_DUPLEX}: 2.0 S; {_MEASURED}: 1.15 S at n = 4",
        ),
    },
)
