"""A measured step as computation that calls collectives and waits for some of them. Times in ns."""

from __future__ import annotations

from stepscope.core.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCall:
    """One collective of one rank's step. position: in that rank's ``RankCommunication.collectives``.

    ready_ns, needed_ns: *progress*, the time of the step that is not spent waiting for collectives: what it carries is
    computed; computation goes no further without it. duration_ns: as this rank saw it, waiting for others included.
    """

    position: int
    ready_ns: int
    needed_ns: int
    duration_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStep:
    """One step of one rank. window_ns = length_ns (progress at its end) + time spent waiting for collectives.

    compute_ns, copies_ns: of the length, under computation and under copies alone; the rest is idle. lanes: how many
    collectives ran at once. calls: in order of their launches.
    """

    rank: int
    step: int
    window_ns: int
    length_ns: int
    compute_ns: int
    copies_ns: int
    lanes: int
    calls: tuple[StepCall, ...]
