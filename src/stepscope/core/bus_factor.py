"""busbw / algbw of each collective, as nccl-tests defines them (docs/reference/metrics.md).

What the ideal algorithm sends over the busiest link, in units of S, so that rates of different collectives on different
numbers of ranks compare with one link.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping


def others(n: int) -> float:
    """Every rank's part but one's own: (n - 1) / n."""
    return (n - 1) / n


def twice_others(n: int) -> float:
    """Once to reduce the parts, once to gather them: 2 (n - 1) / n."""
    return 2 * (n - 1) / n


def one(_: int) -> float:
    """The whole of S."""
    return 1.0


BUS_FACTORS: Mapping[str, Callable[[int], float]] = {
    "all_reduce": twice_others,
    "all_gather": others,
    "reduce_scatter": others,
    "all_to_all": others,
    "all_to_all_v": one,
    "broadcast": one,
    "reduce": one,
    "send_recv": one,
    "gather": others,
    "scatter": others,
}
"""By collective; n: ranks. all_to_all_v: S is what the busiest rank sends to others."""

OF_WHOLE_BUFFERS: Mapping[str, Callable[[int], float]] = {**BUS_FACTORS, "all_to_all_v": others}
"""``BUS_FACTORS`` where S of an all_to_all_v is the largest buffer, own part included, as in nccl-tests and in traces."""
