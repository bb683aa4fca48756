"""The collectives: what S is of each in the nccl-tests sense, and what it costs on the wire by algorithm."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

from stepscope.core.bus_factor import BUS_FACTORS, others, twice_others
from stepscope.core.dataclass import record
from stepscope.core.errors import UsageError
from stepscope.core.words import unknown

REDUCE_OPS = ("sum", "avg", "max", "min", "product")


@record
class Cost:
    """Cost of one algorithm in the alpha-beta model, t = steps x alpha + wire_bytes / beta.

    steps(n): messages one after the other on the critical path. wire_factor(n): bytes on the critical path / S. source:
    where the two come from. link_factor(n): bytes through the busiest link in one direction / S; None: the same, so that
    two calls at once take as long as one after the other.
    """

    steps: Callable[[int], int]
    wire_factor: Callable[[int], float]
    source: str
    link_factor: Callable[[int], float] | None = None

    def link_share(self, n: int) -> float:
        """Share of the busiest link's rate that a call takes on its way, 0 to 1."""
        wire = self.wire_factor(n)
        return 1.0 if self.link_factor is None or not wire else min(1.0, self.link_factor(n) / wire)


@record
class Collective:
    """A collective's spec. n is the world size, S (``size_bytes``) the nccl-tests size: see docs/reference/metrics.md.

    parts: the number of equal parts that S is cut into, ``world`` or 1: S is divisible
    by parts x bytes of an element. together: all ranks leave it together.
    costs: by algorithm (``ring``, ``tree``, ``gloo``, ...); the first is that of the ideal time. 1 rank: 0 steps, 0 bytes.
    """

    key: str
    summary: str
    costs: Mapping[str, Cost]
    reduces: bool = False
    rooted: bool = False
    parts: Literal["world", "one"] = "one"
    together: bool = True
    has_payload: bool = True
    patterns: tuple[str, ...] = ()
    in_place: bool = True  # whether an in-place form exists
    out_of_place: bool = True  # whether torch has a form that keeps the input; otherwise it is copied first
    min_world: int = 1

    def payload_bytes(self, asked_bytes: int, *, itemsize: int, world_size: int) -> int:
        """The largest S <= ``asked_bytes`` that elements and parts divide; 0: not one element for each part."""
        unit = itemsize * (world_size if self.parts == "world" else 1)
        return asked_bytes // unit * unit

    def bus_factor(self, n: int) -> float:
        """busbw / algbw; 0 where there is no payload."""
        return BUS_FACTORS[self.key](n) if self.has_payload else 0.0

    def wire_bytes(self, size_bytes: int, *, world_size: int, algorithm: str) -> float:
        """Bytes on the critical path, one after the other."""
        return size_bytes * self.cost(algorithm).wire_factor(world_size)

    def steps(self, *, world_size: int, algorithm: str) -> int:
        return self.cost(algorithm).steps(world_size)

    def cost(self, algorithm: str) -> Cost:
        try:
            return self.costs[algorithm]
        except KeyError:
            raise UsageError(unknown(f"algorithm of {self.key}", algorithm, self.costs)) from None


_MEASURED = "measured, torch 2.13 gloo on shaped links, 2026-11"
_HALF_DUPLEX = "isend and irecv with the same peer take turns on its connection"
_CHAIN = "pipelined from rank to rank: each link carries the tensor once"
_GLOO_EXCESS = (
    1.1  # of a reduce_scatter: 1.49 to 1.97 measured at n = 4 on several days, over the 1.5 that the ring moves
)


def part_sizes(numel: int, *, world_size: int) -> tuple[int, ...]:
    """Elements that every rank of an all_to_all_v sends to the rank d places after it, d = 0 .. n - 1, ``numel`` in all.

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


def _lap_steps(n: int) -> int:
    return n - 1


def _two_laps(n: int) -> int:
    return 2 * (n - 1)


def _at_once(n: int) -> int:
    return min(1, n - 1)


def _round_count(n: int) -> int:
    return math.ceil(math.log2(n))


def _whole_factor(n: int) -> float:
    return 1.0 if n > 1 else 0.0


def _no_steps(_: int) -> float:
    return 0.0


def _gloo_all_to_all(n: int) -> float:
    full_duplex = (n - 1) / n
    # Of two ranks half a ring apart one sends first: even worlds have such pairs, and they cost 2 (n - 1) / n parts.
    return full_duplex if n % 2 else full_duplex * (n + 2) / n


def _gloo_broadcast_steps(n: int) -> int:
    """Count the most ones in the binary form of a rank below n: each is one hop, the sends of one rank start together."""
    return n.bit_length() - 1


def _gloo_broadcast(n: int) -> float:
    """Count the longest chain of whole copies, in which a rank's copies to its k children share its link: k S each."""
    levels = math.ceil(math.log2(n))
    received = {0: 0.0}
    for rank in range(n):
        children = [rank | 1 << bit for bit in range(rank.bit_length(), levels) if rank | 1 << bit < n]
        received.update(dict.fromkeys(children, received[rank] + len(children)))
    return max(received.values())


def _gloo_reduce(n: int) -> float:
    return 1.25 if n == 2 else 2 * (n - 1) / n  # 2: both directions of the ring share one connection, a quarter waits


def _gloo_reduce_scatter(n: int) -> float:
    ring = 2 * (n - 1) / n
    return ring if n <= 2 else ring * _GLOO_EXCESS


_TO_AND_FROM_ROOT = Cost(steps=_at_once, wire_factor=others, source=f"{_MEASURED}: 0.50 S at n = 2, 0.75 S at n = 4")

_COLLECTIVES = (
    Collective(
        key="all_gather",
        summary="every rank gets the tensors of all ranks, one after the other; S: bytes of the whole output",
        parts="world",
        costs={
            "ring": Cost(steps=_lap_steps, wire_factor=others, source="each part travels n - 1 hops around a ring"),
            "gloo": Cost(
                steps=_lap_steps,
                wire_factor=lambda n: (2 * n - 1) / (2 * n) if n > 1 else 0.0,
                source="a ring in halves of a part, of which one half, S / (2 n), does not overlap with the others; "
                f"{_MEASURED}: 0.76 S at n = 2, 0.88 S at n = 4",
            ),
        },
    ),
    Collective(
        key="all_reduce",
        summary="every rank gets the reduction of all tensors; S: bytes of the tensor",
        reduces=True,
        out_of_place=False,
        costs={
            "ring": Cost(
                steps=_two_laps, wire_factor=twice_others, source="reduce-scatter, then all-gather around a ring"
            ),
            "tree": Cost(
                steps=lambda n: 2 * _round_count(n),
                wire_factor=lambda n: 2.0 if n > 1 else 0.0,
                source="pipelined reduce up and broadcast down a binary tree",
            ),
            "gloo": Cost(
                steps=_two_laps, wire_factor=twice_others, source=f"{_MEASURED}: 1.00 S at n = 2, 1.51 S at n = 4"
            ),
        },
    ),
    Collective(
        key="all_to_all",
        summary="every rank sends one part of its tensor to each rank; S: bytes of the whole input of one rank",
        parts="world",
        in_place=False,  # a part may arrive before the one in its place has left
        costs={
            "direct": Cost(steps=_lap_steps, wire_factor=others, source="one part to each peer in turn"),
            "gloo": Cost(
                steps=_at_once,
                wire_factor=_gloo_all_to_all,
                source="all parts at once, each connection in one direction after the other; fair sharing of the links "
                "gives (n - 1) / n S for odd n, (n - 1) (n + 2) / n^2 S for even n; "
                f"{_MEASURED}: 0.99 S at n = 2, 1.12 to 1.25 S at n = 4 (1.13 by the formula)",
            ),
        },
    ),
    Collective(
        key="all_to_all_v",
        summary="every rank sends parts of different sizes (part_sizes) to all others; S: what the busiest rank sends or "
        "receives, without what it keeps",
        in_place=False,
        costs={
            "direct": Cost(steps=_lap_steps, wire_factor=_whole_factor, source="one part to each peer in turn"),
            "gloo": Cost(
                steps=_at_once,
                wire_factor=lambda n: 0.0 if n == 1 else 1.0 if n % 2 else (n + 2) / n,
                source="as all_to_all, in units of what is sent to others: 2.0 S at n = 2 follows from its measurement; "
                "for larger even n the rate of equal parts, which unequal ones meet within 8% when links are shared "
                "fairly; not measured",
            ),
        },
    ),
    Collective(
        key="barrier",
        summary="no rank leaves before all have entered; no payload: the time is a latency",
        has_payload=False,
        costs={
            "dissemination": Cost(
                steps=_round_count,
                wire_factor=_no_steps,
                source="in round k every rank signals the one 2^k places after it",
            ),
            "gloo": Cost(
                steps=_round_count,
                wire_factor=_no_steps,
                source="dissemination; steps measured, torch 2.13 gloo on delayed links, 2026-11, at n = 2, 3, 4",
            ),
        },
    ),
    Collective(
        key="broadcast",
        summary="every rank gets the root's tensor; S: bytes of the tensor",
        rooted=True,
        together=False,
        out_of_place=False,
        costs={
            "chain": Cost(steps=_lap_steps, wire_factor=_whole_factor, source=_CHAIN),
            "binomial": Cost(
                steps=_round_count,
                wire_factor=lambda n: float(_round_count(n)),
                source="whole tensors, the number of ranks that have it doubles in each round",
            ),
            "gloo": Cost(
                steps=_gloo_broadcast_steps,
                wire_factor=_gloo_broadcast,
                link_factor=lambda n: float(math.ceil(math.log2(n))),  # the root's, to its children
                source="a binomial tree in which a rank sends to all its children at once, so that they share its link; "
                f"{_MEASURED}: 1.00 S at n = 2, 3.00 S at n = 4",
            ),
        },
    ),
    Collective(
        key="gather",
        summary="the root gets the tensors of all ranks, one after the other; S: bytes at the root, of all ranks",
        rooted=True,
        together=False,
        parts="world",
        costs={
            "direct": Cost(
                steps=_at_once,
                wire_factor=others,
                source="all ranks send to the root at once, which receives (n - 1) / n S",
            ),
            "gloo": _TO_AND_FROM_ROOT,
        },
    ),
    Collective(
        key="reduce",
        summary="the root gets the reduction of all tensors; S: bytes of the tensor",
        reduces=True,
        rooted=True,
        together=False,
        out_of_place=False,
        costs={
            "chain": Cost(steps=_lap_steps, wire_factor=_whole_factor, source=_CHAIN),
            "binomial": Cost(
                steps=_round_count,
                wire_factor=lambda n: float(_round_count(n)),
                source="whole tensors, the number of ranks that still hold a part halves in each round",
            ),
            "gloo": Cost(
                steps=lambda n: n if n > 1 else 0,
                wire_factor=_gloo_reduce,
                source="a ring reduce-scatter, then all parts go to the root: 2 (n - 1) / n S; "
                f"{_MEASURED}: 1.25 S at n = 2, where both directions share a connection, 1.51 S at n = 4",
            ),
        },
    ),
    Collective(
        key="reduce_scatter",
        summary="every rank gets its part of the reduction of all tensors; S: bytes of the whole input",
        reduces=True,
        parts="world",
        costs={
            "ring": Cost(
                steps=_lap_steps,
                wire_factor=others,
                source="each part travels n - 1 hops around a ring and is reduced at each",
            ),
            "gloo": Cost(
                steps=_two_laps,
                wire_factor=_gloo_reduce_scatter,
                source=f"runs as an all_reduce of the whole input: 2 (n - 1) / n S; {_MEASURED}: 1.02 to 1.09 S at n = 2, "
                f"1.49 to 1.97 S at n = 4 (reduced by cores that ranks share); the excess, {_GLOO_EXCESS:g} times, is the "
                "middle of that and kept for n > 2",
            ),
        },
    ),
    Collective(
        key="scatter",
        summary="every rank gets its part of the root's tensor; S: bytes at the root, of all ranks",
        rooted=True,
        together=False,
        parts="world",
        costs={
            "direct": Cost(
                steps=_at_once, wire_factor=others, source="the root sends to all ranks at once, (n - 1) / n S"
            ),
            "gloo": _TO_AND_FROM_ROOT,
        },
    ),
    # uni: 0 -> 1, 2 -> 3, ...; bi: the same pairs, both ways at once; ring: every rank sends to the next one and receives
    # from the one before. In an odd world the last rank has no partner in uni and bi and does nothing.
    Collective(
        key="send_recv",
        summary="messages from rank to rank: one way, both ways or around a ring; S: bytes of one message",
        together=False,
        in_place=False,
        patterns=("uni", "bi", "ring"),
        min_world=2,
        costs={
            "direct": Cost(
                steps=_at_once,
                wire_factor=_whole_factor,
                source="one message on every link, both directions of a link at once",
            ),
            "gloo": Cost(steps=_at_once, wire_factor=_whole_factor, source=f"pattern uni; {_MEASURED}: 1.00 S"),
            "gloo_bi": Cost(
                steps=_at_once,
                wire_factor=lambda n: 2.0 if n > 1 else 0.0,
                source=f"pattern bi; {_HALF_DUPLEX}; {_MEASURED}: 2.0 S",
            ),
            "gloo_ring": Cost(
                steps=_at_once,
                wire_factor=lambda n: 0.0 if n == 1 else 2.0 if n == 2 else 1.15,
                source=f"pattern ring; at n = 2 {_HALF_DUPLEX}: 2.0 S; {_MEASURED}: 1.15 S at n = 4",
            ),
        },
    ),
)

TABLE = {collective.key: collective for collective in _COLLECTIVES}
