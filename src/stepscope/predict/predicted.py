"""What any predictor of a collective's time returns, calibrated or from the specification alone."""

from __future__ import annotations

from dataclasses import dataclass

Z80 = 1.2816
"""Half-width of an 80% interval in standard deviations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another way to do the same call. offered: the library would run it; else it stands for comparison only."""

    algorithm: str
    protocol: str
    time_ns: float
    offered: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """Predicted time of one collective call, ns, with an 80% interval.

    algorithm: ``ring``, ``tree``, ``gloo``, ...: what the time was computed for. why: why this one, and from what.
    notes: what the reader must know before trusting it (extrapolated, another world size, ...).
    protocol: of NCCL and RCCL. busbw_bytes_per_s: of ``time_ns``; None for ops without payload.
    alternatives: every other candidate, fastest first.
    """

    time_ns: float
    low_ns: float
    high_ns: float
    algorithm: str
    why: str
    notes: tuple[str, ...] = ()
    protocol: str | None = None
    busbw_bytes_per_s: float | None = None
    alternatives: tuple[Alternative, ...] = ()
