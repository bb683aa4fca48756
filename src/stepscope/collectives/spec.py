"""What every collective declares: sizes in the nccl-tests sense, and its cost on the wire for each algorithm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from stepscope.core.bus_factor import BUS_FACTORS
from stepscope.core.errors import UsageError
from stepscope.core.suggest import unknown

REDUCE_OPS = ("sum", "avg", "max", "min", "product")


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """A collective's spec. n is the world size, S (``size_bytes``) the nccl-tests size: see docs/reference/metrics.md.

    parts: the number of equal parts that S is cut into, ``world`` or 1: S is divisible
    by parts x bytes of an element. together: all ranks leave it together.
    costs: by algorithm (``ring``, ``tree``, ``gloo``, ...); the first is the ideal one of METRICS. 1 rank: 0 steps, 0 bytes.
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
