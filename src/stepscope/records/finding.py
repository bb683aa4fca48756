"""What `diagnose` finds: a symptom with its evidence, or why nothing can be said; and the verdict on one's own job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from stepscope.core.dataclass import record
from stepscope.records.nouns import Estimate

Severity = Literal["info", "warning", "problem"]

Priority = Literal["wrong", "failure", "doubt", "performance"]
"""Kinds of findings, the most urgent first: figures or results that are wrong, work that failed, figures that other
findings rest on and that are in doubt, time and memory."""


@record
class Advice:
    """One thing to do. command: how, where a command does it."""

    text: str
    command: str | None = None


@record
class Doubt:
    """Why conclusions from a run's times are in doubt. reach: share of the step up to which they may be the figures' own
    error; None: all are."""

    why: str
    reach: float | None = None


@record
class Finding:
    """One thing that matters: symptom, numbers, what to do.

    rule: its name; the engine writes it, a rule need not.
    severity: ``problem``: costs a lot or makes results wrong; ``warning``; ``info``: good news, or worth knowing.
    priority: findings of an earlier kind come first, whatever is at stake. wrong_runs: run_ids whose figures it declares
    wrong or in doubt; nothing else rates or praises them.
    cause: what names_cause rules say caused it, in names and counts: it holds where profiled steps are slower, too; empty:
    only the title says it.
    evidence: sentences with the numbers that led here, strongest first. stake_fraction: share of the step (or of the
    window of a trace) that fixing it returns at most; None: not a matter of time, or unknown.
    stake_on_host: of stake_fraction, what the host itself spends beside the part of the step that the rule claims.
    share: of the step, what the symptom takes, where that may be more than a fix returns.
    confidence: ``measured``, ``likely``, ``certain: ...``: how far the evidence carries, and why no further. doubts: why the
    figures that it rests on carry less far than that (a truncated trace, noise, the profiler).
    casts_doubt: of a finding on how figures were taken, run_id or name of a traced job -> the doubt in what rests on them.
    job: name of the traced job. ranks: those it is about. at_ns: a stretch of time that shows it, first and last ns on
    the clock of the first of ``ranks`` (as in its trace); None: no stretch shows it better than another.
    subject: what it is about where a diagnosis covers several things (a run, a group of runs, a rank, an operation), for
    people: what code asks is ``job``, ``runs`` (run_ids, the one that shows it first) and ``case``, which of a rule's
    checks found it, where it has several.
    """

    rule: str = ""
    severity: Severity
    title: str
    cause: str = ""
    evidence: tuple[str, ...]
    stake_fraction: float | None = None
    stake_on_host: float = 0.0
    share: float | None = None
    confidence: str
    doubts: tuple[str, ...] = ()
    casts_doubt: Mapping[str, Doubt] = field(default_factory=dict)
    advice: tuple[Advice, ...] = ()
    subject: str | None = None
    priority: Priority = "performance"
    runs: tuple[str, ...] = ()
    case: str | None = None
    wrong_runs: tuple[str, ...] = ()
    job: str | None = None
    ranks: tuple[int, ...] = ()
    at_ns: tuple[int, int] | None = None

    @property
    def certainty(self) -> str:
        """Confidence and doubts in one sentence."""
        return f"doubtful: {'; '.join(self.doubts)}; otherwise {self.confidence}" if self.doubts else self.confidence


@record
class Skipped:
    """A rule that could not look. command: what to run so that it can; None: nothing can be run for that."""

    rule: str = ""
    reason: str
    command: str | None = None


@record
class Quiet:
    """A rule that looked and found nothing. looked_at: at what, and what decided (``3% exposed, limit 10%``)."""

    rule: str = ""
    looked_at: str


@record
class Diagnosis:
    """All rules on one body of evidence. findings: by priority, stake and severity; good news last."""

    findings: tuple[Finding, ...]
    skipped: tuple[Skipped, ...]
    quiet: tuple[Quiet, ...]


VerdictKind = Literal[
    "crash", "killed", "hang", "no-steps",
    "contended-machine",
    "input-bound", "communication-bound", "straggler", "uneven-work", "pipeline-bubble", "evaluation", "checkpointing",
    "garbage-collection", "compilation", "periodic-pause", "host-bound", "memory-bound", "optimizer-bound",
    "before-forward", "inference", "worker-start", "independent-processes", "compute-bound", "computation-or-python",
    "undecided",
]  # fmt: skip
"""input-bound: the loop was seen to wait for a loader, or for I/O; before-forward: what it does there is not known.
inference: forward passes without gradients that are no evaluation. worker-start: of an epoch's loader.
computation-or-python: the rest, where no window tells them apart.
"""


@record
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


@record
class TimeCost:
    """One thing that takes time. kind as of the verdict; of: share of the step, or of the wall time (events between steps).

    ranks: those that cause it. excess_ns: of a late rank, a step, beyond the others. period: steps between events.
    rules: findings of the window that explain it. cause: of them, the rule that names why the time is spent; None: there is
    none. line: it in words.
    """

    kind: VerdictKind
    share: Estimate
    of: Literal["step", "wall"] = "step"
    stake_fraction: float | None = None
    ranks: tuple[int, ...] = ()
    excess_ns: float | None = None
    period: int | None = None
    event_ns: float | None = None
    rules: tuple[str, ...] = ()
    cause: str | None = None
    line: str = ""


@record
class MemoryGrowth:
    """Memory of which every step takes more. of: the host's, or the devices'. ranks: whose it is, the fastest first;
    per_step: bytes, of the first. host: of several, whose memory is full first, by all its ranks. full_s: from the last
    sample until then, at the rate of the last steps; None: unknown.
    """

    of: Literal["host", "device"]
    ranks: tuple[int, ...]
    per_step: Estimate
    host: str | None = None
    full_s: float | None = None


@record
class JobMemory:
    """host_bytes: resident, of the rank with most; device_bytes: reserved by torch, likewise; None: unknown, or no device.
    device_used_bytes, device_total_bytes: of the fullest device, by all processes, as its driver knows it.

    growth: what does not level off; steady: nothing, and enough was sampled to know. line: all of it in words.
    """

    host_bytes: float | None = None
    device_bytes: float | None = None
    device_used_bytes: float | None = None
    device_total_bytes: float | None = None
    growth: tuple[MemoryGrowth, ...] = ()
    steady: bool = False
    line: str = ""


@record
class OperatorExcess:
    """An operator, or a kernel, that takes a late rank, or a slow step, longer than another one. kind: which of them.

    excess_ns: a step, the medians' difference; ratio: None where the other has none of it. calls: a step, on both; None:
    unknown. against: another rank; None: the rank's own other steps, steps: the slow ones, by the numbers of their marks.
    """

    rank: int
    against: int | None
    kind: Literal["operator", "kernel"]
    name: str
    excess_ns: float
    ratio: float | None
    calls: float | None = None
    calls_against: float | None = None
    steps: tuple[int, ...] = ()


@record
class GroupWait:
    """Exposed communication of one process group, or of those with the same name, in one operation.

    ranks: of a group; None: not known. of_ranks: that are in such a group. ns: in the mean of a step and of all ranks, so
    that those of all groups add up to the exposed communication; waiting_ns: of it for slower ranks of the group; None: not
    known. calls: waits in a step of a rank that is in it.
    """

    group: str
    ranks: int | None
    operation: str
    of_ranks: int
    ns: float
    waiting_ns: float | None
    calls: float


@record
class JobChange:
    """A step from which on a job runs at another level, and stays there. ratio: step time after / before.

    unix_s: when that step began; None: unknown. ranks: whose own time changed with it, unless it is that of all_ranks;
    with neither it is slower transfer, or waiting. hosts: theirs, where it is all ranks of these and no other.
    part: of the step, which changed most. line: all of it in words.
    """

    step: int
    unix_s: float | None
    ratio: Estimate
    ranks: tuple[int, ...] = ()
    all_ranks: bool = False
    hosts: tuple[str, ...] = ()
    part: str | None = None
    line: str = ""

    @property
    def slower(self) -> bool:
        return self.ratio.value > 1


@record
class ClockDrop:
    """GPUs of these ranks that ran at lower clocks while they computed. against_hz: of the other ranks in the same steps;
    before: their own before the change. Medians of samples, over the ranks.

    reasons: of the driver, in most samples, and far oftener than there; power_limit_w: where it is lower than
    power_limit_against_w, there. line: all of it in words.
    """

    ranks: tuple[int, ...]
    sm_clock_hz: float
    against_hz: float
    before: bool
    reasons: tuple[str, ...] = ()
    temperature_c: float | None = None
    power_limit_w: float | None = None
    power_limit_against_w: float | None = None
    line: str = ""


@record
class JobVerdict:
    """The first screen. kind: of the first cost, of the job's end, or what is left (compute-bound, undecided).

    costs: all that is worth a line, the first named first. stake_fraction: of the step that goes if the first cost goes;
    the costs' stakes sum to at most 1. steps_timed: without warm-up and window, on every rank; 0: the window alone speaks.
    steps_made: by all ranks, those before too; None: written by an older stepscope.
    step_ns: median of the timed steps, of the slowest rank. profiled_step_ns: of the window. confidence as of a finding.
    notes: what else is known of the steps: events too small for a cost, drift, what the profiler costs.
    memory: of the ranks over time; None: not sampled. It takes no step time, so it is no kind.
    change: of the level that the steps run at.
    operators: what late ranks take longer for, where profiled steps show it, the largest first.
    groups: exposed communication by process group and operation, as far as the host waits for it; empty: of one alone.
    clocks: of late ranks, and of ranks that became slower, those whose GPUs ran at lower clocks.
    why: what the window, and what ranks recorded of themselves, say of the first cost: names and counts, at most five lines.
    slowdown: how many times a timed step a profiled one takes; None: no window. slowed_apart: how many times as much on the
    rank that the profiler slows most as on the one that it slows least; None: not known.
    """

    kind: VerdictKind
    ranks: tuple[int, ...] = ()
    share: Estimate | None = None
    of: Literal["step", "wall"] = "step"
    stake_fraction: float | None = None
    confidence: str
    headline: str
    why: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    advice: tuple[Advice, ...] = ()
    costs: tuple[TimeCost, ...] = ()
    tree: tuple[VerdictPart, ...] = ()
    step_ns: float | None = None
    step_low_ns: float | None = None
    step_high_ns: float | None = None
    profiled_step_ns: float | None = None
    slowdown: float | None = None
    slowed_apart: float | None = None
    steps_timed: int = 0
    steps_made: int | None = None
    steps_profiled: int = 0
    ranks_seen: int = 0
    world_size: int | None = None
    hosts: int = 0
    ended: str | None = None
    memory: JobMemory | None = None
    change: JobChange | None = None
    operators: tuple[OperatorExcess, ...] = ()
    groups: tuple[GroupWait, ...] = ()
    clocks: tuple[ClockDrop, ...] = ()

    @property
    def part_cost(self) -> TimeCost | None:
        """The first cost that is a part of steps: what a contended machine takes is in all parts."""
        return next((cost for cost in self.costs if cost.kind != "contended-machine"), None)

    @property
    def marked(self) -> VerdictKind:
        """The kind of verdict that the tree's marked part is the cause of."""
        return self.kind if self.part_cost is None else self.part_cost.kind

    @property
    def slowed(self) -> tuple[int, ...]:
        """Ranks whose own time a lasting change has made longer; empty: of all, or none."""
        return self.change.ranks if self.change is not None and self.change.slower else ()

    @property
    def window_sized(self) -> bool:
        """Whether sizes of the window are near those of timed steps: the profiler slows it little, and all ranks alike."""
        alike = 1 / MOST_SLOWED <= (self.slowdown or 1.0) <= MOST_SLOWED
        return alike and (self.slowed_apart or 1.0) <= MOST_APART


RANKS_DIFFER = 0.02
"""Share of the whole: parts of a tree whose ranks are further apart show each rank's."""

MOST_SLOWED, MOST_APART = 1.5, 1.25
"""Of 51 windows a profiled step took 1.13 times a timed one in the median, 7 above 1.5; ranks of these had false stragglers
(2026-11). Of a window beyond either, order, names and counts alone hold."""
