"""What the time of a run would have to be shortened on: the critical path of one rank and across ranks, and the ranks that
others wait for, with the evidence. Times in ns.
"""

from __future__ import annotations

from stepscope.core.dataclass import record


@record
class PathParts:
    """Time on the path by what it was spent on; the parts sum to the path's length exactly.

    host_operator: inside operators. host_runtime: inside the runtime's calls, waits included. host_other: the host in
    neither (Python, data loading). launch_latency: from a launch call's start to the work's start. device_gap: between
    two pieces of device work that follow from each other.
    """

    compute_ns: int = 0
    communication_ns: int = 0
    memory_ns: int = 0
    host_operator_ns: int = 0
    host_runtime_ns: int = 0
    host_other_ns: int = 0
    launch_latency_ns: int = 0
    device_gap_ns: int = 0

    @property
    def total_ns(self) -> int:
        return (
            self.compute_ns + self.communication_ns + self.memory_ns + self.host_operator_ns + self.host_runtime_ns
            + self.host_other_ns + self.launch_latency_ns + self.device_gap_ns
        )  # fmt: skip


@record
class PathContributor:
    """All of one name's time on the path. part: the field of PathParts it belongs to, without ``_ns``."""

    part: str
    name: str
    total_ns: int
    share: float


@record
class CriticalPath:
    """The chain of work of one rank that ends with the window and in which each piece waited for the one before.

    switches: changes between host threads and the device along it. inferred: edges between streams that are concluded
    from a wait call, not recorded. source: device | cpu_spans.
    """

    rank: int
    start_ns: int
    end_ns: int
    source: str
    parts: PathParts
    contributors: tuple[PathContributor, ...]
    switches: int
    inferred: int


@record
class PathLeg:
    """The path from a point back to where a collective of the same rank ended (None: the start of the trace).

    back_to: place of that collective among the rank's communication events in order of start.
    """

    parts: PathParts
    back_to: int | None


@record
class RankLegs:
    """What joining ranks needs of one: the leg that ends with its window, and one that ends at each collective's start.

    durations_ns: of the collectives, for those that no match was found for.
    """

    rank: int
    end_ns: int
    last: PathLeg
    legs: tuple[PathLeg, ...]
    durations_ns: tuple[int, ...]


@record
class RankShare:
    """How much of the path across ranks ran on one rank, outside collectives."""

    rank: int
    parts: PathParts


@record
class CrossRankPath:
    """The path through all ranks, from rank to rank where one waited for another in a collective.

    Waiting in a collective is not on it: what the late rank did instead is. transfer_ns: the collectives from the last
    arrival on. hops: collectives at which the path changed rank. unmatched: collectives that stayed on their rank with
    all of their duration (not matched, or not split). total = transfer + the ranks' parts.
    """

    end_rank: int
    total_ns: int
    transfer_ns: int
    ranks: tuple[RankShare, ...]
    collectives: int
    unmatched: int
    hops: int


@record
class CauseShare:
    """One kind of time that a late rank spent more of than its peers before the collectives it delayed."""

    cause: str  # compute | memory | host_late | sync | data | launch_latency | kernel_gap | dependency | unknown
    rank_ns: int
    peers_ns: int  # median of the others
    excess_ns: int


@record
class Straggler:
    """A rank that made the others wait more often, or longer, than chance allows.

    rule: short (share of skew and binomial test) | steps (own time against the others', >= 20 steps) | grid (own time
    against the ranks that do the same work, ``peers``; ``saved_ns`` is of the capture replayed with the peers' time).
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
    peers: tuple[int, ...] = ()


@record
class StragglerReport:
    """Stragglers by share of skew, largest first; empty is an answer, and ``text`` says it.

    pattern: none | chronic | rotating | one-off | undecided (one rank is mostly last, too few waits to name it) | alone (no
    rank does the same work as another): how the lateness spreads over ranks, listed or not. waiting_ns: of all ranks, while
    they compute nothing and nothing transfers.
    """

    stragglers: tuple[Straggler, ...]
    pattern: str
    skew_ns: int
    waiting_ns: int
    instances: int
    steps: int
    text: str
