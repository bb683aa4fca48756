"""Every rank sends parts of different sizes to all others. S: what the busiest rank sends or receives.

What a rank keeps for itself is left out of S. The parts are those of ``part_sizes``: unequal for every rank, equal
in sum, so that S is exact at any size.
"""

from __future__ import annotations

from stepscope.collectives._common import Collective, Cost


def part_sizes(numel: int, *, world_size: int) -> tuple[int, ...]:
    """Elements that every rank sends to the rank d places after it, d = 0 .. n - 1; their sum is ``numel``.

    In proportion to n - d: the next rank gets most. Nothing stays at home, except in a world of one rank.
    """
    if world_size == 1:
        return (numel,)
    weights = [0, *range(world_size - 1, 0, -1)]
    total, ends, so_far = sum(weights), [], 0
    for weight in weights:
        so_far += weight
        ends.append(numel * so_far // total)
    return tuple(end - start for start, end in zip([0, *ends], ends, strict=False))


COLLECTIVE = Collective(
    key="all_to_all_v",
    summary="every rank sends parts of different sizes to all others",
    bus_factor=lambda n: 1.0,  # noqa: ARG005 - S is what crosses the busiest link
    in_place=False,
    costs={
        "direct": Cost(
            steps=lambda n: n - 1,
            wire_factor=lambda n: 1.0 if n > 1 else 0.0,
            source="one part to each peer in turn",
        ),
        "gloo": Cost(
            steps=lambda n: min(1, n - 1),
            wire_factor=lambda n: 0.0 if n == 1 else 1.0 if n % 2 else (n + 2) / n,
            source=(
                "as all_to_all, in units of what is sent to others: 2.0 S at n = 2 follows from its measurement; for larger "
                "even n the rate of equal parts, which unequal ones meet within 8 % when links are shared fairly; "
                "not measured"
            ),
        ),
    },
)
