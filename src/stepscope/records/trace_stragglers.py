"""Ranks that the others wait for, with the evidence. Times in ns."""

from __future__ import annotations

from stepscope.core.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseShare:
    """One kind of time that a late rank spent more of than its peers before the collectives it delayed."""

    cause: str  # compute | memory | host_late | sync | data | launch_latency | kernel_gap | dependency | unknown
    rank_ns: int
    peers_ns: int  # median of the others
    excess_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """A rank that made the others wait more often, or longer, than chance allows.

    rule: short (share of skew and binomial test) | steps (own time against the others', >= 20 steps).
    kind: chronic (last in at least half of the steps, or of the collectives where steps are few) | rotating |
    one-off (all in one step). share_of_skew: skew of the instances in which it came last / all skew.
    p_value: Bonferroni-corrected over ranks; None under the rule of steps, where ``excess_low_ns`` is the
    block bootstrap's lower bound of its median excess a step.
    instances: those in which somebody can be said to have come last (skew larger than how far apart they left).
    late_ns: how long after the median of its peers it entered, where it came last; saved_ns: after the second last, an
    upper bound of what speeding it up saves. Lateness that overlapped collectives carry on counts once.
    largest_share: of its skew,
    in the one instance that carries most: near 1, that one instance is the finding.
    """

    rank: int
    rule: str
    kind: str
    share_of_skew: float
    times_last: int
    instances: int
    steps: int
    p_value: float | None
    excess_ns: float | None
    excess_low_ns: float | None
    saved_ns: int
    late_ns: int
    largest_share: float
    cause: str  # launch-bound | more compute | memory copies | sync | data | unknown
    causes: tuple[CauseShare, ...]
    confidence: str
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerReport:
    """Stragglers by share of skew, largest first; empty is an answer, and ``text`` says it.

    pattern: none | chronic | rotating | one-off | undecided (one rank is mostly last, too few waits to name it): how the
    lateness spreads over ranks, listed or not. waiting_ns: of all ranks, while they compute nothing and nothing transfers.
    """

    stragglers: tuple[Straggler, ...]
    pattern: str
    skew_ns: int
    waiting_ns: int
    instances: int
    steps: int
    text: str
