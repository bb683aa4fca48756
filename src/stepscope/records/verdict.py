"""The verdict on one's own job: what takes the time, how much of it, how sure; from all steps, explained by the window."""

from __future__ import annotations

from typing import Literal

from stepscope.core.dataclass import dataclass
from stepscope.records.finding import Advice

VerdictKind = Literal[
    "crash", "killed", "hang", "no-steps",
    "contended-machine",
    "input-bound", "communication-bound", "straggler", "uneven-work", "pipeline-bubble", "evaluation", "checkpointing",
    "garbage-collection", "compilation", "periodic-pause", "host-bound", "memory-bound", "optimizer-bound",
    "independent-processes", "compute-bound", "undecided",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A share and its block-bootstrap 95% interval; None where the steps are too few for one."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictPart:
    """A line of the tree: mean nanoseconds a step, as a share of the whole; the parts of one level sum to their parent.

    key: data | computation | forward | backward | optimizer | communication | waiting | transfer | outside | evaluation |
    checkpoint | other | ...; by_rank: (rank, ns), where ranks differ. cause: the part that the verdict names.
    """

    key: str
    ns: float
    share: float
    parts: tuple[VerdictPart, ...] = ()
    by_rank: tuple[tuple[int, float], ...] = ()
    cause: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeCost:
    """One thing that takes time. kind as of the verdict; of: share of the step, or of the wall time (events between steps).

    ranks: those that cause it. excess_ns: of a late rank, a step, beyond the others. period: steps between events.
    rules: findings of the window that explain it. line: it in words.
    """

    kind: VerdictKind
    share: Share
    of: Literal["step", "wall"] = "step"
    stake_fraction: float | None = None
    ranks: tuple[int, ...] = ()
    excess_ns: float | None = None
    period: int | None = None
    event_ns: float | None = None
    rules: tuple[str, ...] = ()
    line: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobVerdict:
    """The first screen. kind: of the first cost, of the job's end, or what is left (compute-bound, undecided).

    costs: all that is worth a line, the first named first. stake_fraction: of the step that goes if the first cost goes;
    the costs' stakes sum to at most 1. steps_timed: without warm-up and window, on every rank; 0: the window alone speaks.
    step_ns: median of the timed steps, of the slowest rank. profiled_step_ns: of the window. confidence as of a finding.
    notes: what else is known of the steps: events too small for a cost, drift, what the profiler costs.
    """

    kind: VerdictKind
    ranks: tuple[int, ...] = ()
    share: Share | None = None
    of: Literal["step", "wall"] = "step"
    stake_fraction: float | None = None
    confidence: str
    headline: str
    evidence: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    advice: tuple[Advice, ...] = ()
    costs: tuple[TimeCost, ...] = ()
    tree: tuple[VerdictPart, ...] = ()
    step_ns: float | None = None
    step_low_ns: float | None = None
    step_high_ns: float | None = None
    profiled_step_ns: float | None = None
    steps_timed: int = 0
    steps_profiled: int = 0
    ranks_seen: int = 0
    world_size: int | None = None
    hosts: int = 0
    ended: str | None = None
