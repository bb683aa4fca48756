"""What `trace` finds: one pass per rank and what the ranks show together; the merged trace; two traces side by side."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from stepscope.core.dataclass import record

if TYPE_CHECKING:
    from stepscope.records.prediction import RankStep
    from stepscope.records.profile import JobSetup
    from stepscope.records.trace_budget import (
        BudgetVerdict,
        GroupBudget,
        IdleCause,
        LongGap,
        OutsideWork,
        PhaseBudget,
        RankBudget,
        RankSpans,
        StepBudget,
        Utilisation,
    )
    from stepscope.records.trace_collectives import BucketRow, ConformanceCheck, JobCollectives, RankCommunication
    from stepscope.records.trace_path import CriticalPath, CrossRankPath, RankLegs, StragglerReport
    from stepscope.records.trace_quality import Figure, QualityFact
    from stepscope.records.trace_rules import (
        BackwardPasses,
        DividedLayers,
        DriverMemory,
        GradientSync,
        HostLateness,
        JobSigns,
        KernelMix,
        MeasuredBubble,
        ShardedUnits,
        StageWaits,
    )
    from stepscope.records.trace_work import (
        AnnotationRow,
        CopyTable,
        DeviceMemory,
        KernelTable,
        LaunchStatistics,
        ModuleRow,
        OperatorTable,
        SequenceRow,
    )


@record
class StepSeries:
    """One quantity of one rank in every step. calls: in all steps together; None for a part of the budget."""

    kind: str  # part | kernel | operator
    name: str
    calls: int | None
    per_step_ns: tuple[int, ...]


@record
class WorkProfile:
    """What a diff needs of one rank: every part of the budget, kernel and operator by step.

    Without step marks the whole window counts as one step (``marked`` False). kernels and operators beyond the limit are
    together in one series named ``OTHERS``.
    """

    rank: int
    marked: bool
    source: str
    steps: tuple[int, ...]
    series: tuple[StepSeries, ...]


@record
class DiffRow:
    """One quantity before and after, per step (median over the steps). ratio: after / before; None from 0.

    p_value: permutation test over the steps, corrected for all rows of its kind, shown or not; of the step itself, the
    verdict's. None with fewer than 4 steps on a side, and for a row that only one side has.
    presence: both | new | gone | unlisted (the other side may have it among its ``all others``).
    """

    kind: str
    name: str
    presence: str
    before_ns: float
    after_ns: float
    delta_ns: float
    ratio: float | None
    before_calls: float | None  # per step
    after_calls: float | None
    p_value: float | None


@record
class TraceDiff:
    """after against before. verdict: faster | slower | not clear | no significant difference | not tested.

    ratio: step time after / before, its 95% interval where both have at least 4 steps. why: what the verdict rests on.
    """

    rank_before: int
    rank_after: int
    verdict: str
    why: str
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    p_value: float | None
    steps_before: int
    steps_after: int
    parts: tuple[DiffRow, ...]
    kernels: tuple[DiffRow, ...]
    operators: tuple[DiffRow, ...]
    left_out_rows: int


@record
class FileNote:
    """What was repaired, left out or assumed in reading one rank's file."""

    rank: int | None
    kind: str  # repaired | truncated | dropped | assumed | skipped | beside | foreign | missing | window
    text: str


@record
class RankFacts:
    """Where one rank's events came from. ``recorded`` facts are None where the file is silent.

    unix_ns: first start and last end of its events since 1970. frameworks: keys of ``diagnose.frameworks``, as recognised.
    setup: what the job's own process recorded of it.
    """

    rank: int
    file: str
    size_bytes: int
    event_count: int
    world_size: int | None
    backend: str | None
    device_name: str | None
    host: str | None
    unix_ns: tuple[int, int] | None = None
    frameworks: tuple[str, ...] = ()
    setup: JobSetup | None = None


@record
class Missing:
    """A section that a trace cannot answer, and why."""

    section: str
    reason: str


@record
class RankPass:
    """Everything found in one rank's trace alone. A section that was not asked for is None or empty.

    step_flop: of the products in a step whose FLOP or shapes were recorded, as executed. step_operators: called in a step.
    """

    facts: RankFacts
    notes: tuple[FileNote, ...]
    budget: RankBudget | None
    partial: bool = False  # only device events were read: causes, steps and links are unknown
    steps: tuple[StepBudget, ...] = ()
    outside: OutsideWork | None = None
    phases: tuple[PhaseBudget, ...] = ()
    idle: tuple[IdleCause, ...] = ()
    long_gaps: tuple[LongGap, ...] = ()
    communication: RankCommunication | None = None
    groups: tuple[GroupBudget, ...] = ()
    conformance: ConformanceCheck | None = None
    mix: KernelMix | None = None
    signs: JobSigns | None = None
    driver_memory: DriverMemory | None = None
    host_lateness: HostLateness | None = None
    gradient_sync: GradientSync | None = None
    backward_passes: BackwardPasses | None = None
    stage_waits: StageWaits | None = None
    step_flop: float | None = None
    step_operators: float | None = None
    operators: OperatorTable | None = None
    kernels: KernelTable | None = None
    launches: LaunchStatistics | None = None
    copies: CopyTable | None = None
    annotations: tuple[AnnotationRow, ...] = ()
    sequences: tuple[SequenceRow, ...] = ()
    modules: tuple[ModuleRow, ...] = ()
    buckets: tuple[BucketRow, ...] = ()
    units: ShardedUnits | None = None
    layers: DividedLayers | None = None
    memory: tuple[DeviceMemory, ...] = ()
    utilisation: Utilisation | None = None
    path: CriticalPath | None = None
    legs: RankLegs | None = None
    profile: WorkProfile | None = None
    spans: RankSpans | None = None
    replay: tuple[RankStep, ...] = ()
    unavailable: tuple[Missing, ...] = ()
    quality: tuple[QualityFact, ...] = ()

    @property
    def unread(self) -> str | None:
        """The reason why the rank's device was not read, so that there is no budget; None where it was, or there is none."""
        return next((fact.text for fact in self.quality if fact.unread), None)

    @property
    def unknown_ns(self) -> int:
        """How long only kernels of unknown kind ran, where that matters; the budget counts it as computation."""
        return next((f.time_ns or 0 for f in self.quality if f.kind == "unknown-kernels" and f.matters), 0)


@record
class RankVerdict:
    rank: int
    verdict: BudgetVerdict


LOSSES = ("truncated", "skipped", "missing", "dropped")
"""Kinds of notes that say what was not looked at."""

UNTOLD = ("skipped", "beside")
"""Kinds of notes that are not listed under what was read; ``beside``: files of a folder that were never a trace."""


def common_steps(ranks: Iterable[RankPass]) -> tuple[int, ...] | None:
    """Numbers of the steps that every rank with marked steps recorded, ascending; None where no rank has any."""
    recorded = [{s.step for s in rank.steps} for rank in ranks if rank.steps]
    return tuple(sorted(set.intersection(*recorded))) if recorded else None


@record
class TraceSummary:
    """The whole job, over the ranks whose traces were given."""

    world_size: int | None
    ranks: tuple[RankPass, ...]
    verdicts: tuple[RankVerdict, ...]
    notes: tuple[FileNote, ...]
    collectives: JobCollectives | None = None
    stragglers: StragglerReport | None = None
    path: CrossRankPath | None = None
    path_unavailable: str | None = None
    bubble: MeasuredBubble | None = None
    job_quality: tuple[QualityFact, ...] = ()

    @property
    def quality(self) -> tuple[QualityFact, ...]:
        """What is wrong with the traces: between ranks, then of each."""
        return (*self.job_quality, *(fact for rank in self.ranks for fact in rank.quality))

    @property
    def windows_ns(self) -> dict[int, int]:
        """Window of each rank that has one."""
        return {p.facts.rank: p.budget.parts.window_ns for p in self.ranks if p.budget is not None}

    @property
    def hosts(self) -> dict[int, str | None]:
        """Host of each rank."""
        return {p.facts.rank: p.facts.host for p in self.ranks}

    def without(self, figures: Iterable[Figure]) -> QualityFact | None:
        """Return the first fact that takes one of these figures away; None where all can be made."""
        wanted = set(figures)
        return next((fact for fact in self.quality if not wanted.isdisjoint(fact.takes)), None)

    @property
    def common_steps(self) -> tuple[int, ...] | None:
        """Steps that may be compared between ranks; None where no rank marked its steps, empty where none is common."""
        return common_steps(self.ranks)

    @property
    def losses(self) -> tuple[FileNote, ...]:
        """Notes of the job and its ranks that say what was not looked at."""
        notes = (*self.notes, *(note for rank in self.ranks for note in rank.notes))
        return tuple(note for note in notes if note.kind in LOSSES)


@record
class MergedRank:
    """One rank's part of a merged trace. ``moved_ns``: what its clock was corrected by at the start, 0 if nothing."""

    rank: int
    event_count: int
    moved_ns: int
    first_pid: int
    processes: int


@record
class MergedTrace:
    """A written file with all ranks on one clock. size_bytes: of the file."""

    path: str
    size_bytes: int
    ranks: tuple[MergedRank, ...]
    notes: tuple[str, ...]


def missing_ranks(passes: Iterable[RankPass]) -> tuple[tuple[int, ...], int]:
    """Return the ranks that are not here, and how many there are, by what the traces record; else up to the largest here,
    where there are several."""
    facts = [rank_pass.facts for rank_pass in passes]
    present, recorded = {fact.rank for fact in facts}, max((fact.world_size or 0 for fact in facts), default=0)
    world = max(recorded, max(present, default=-1) + 1 if len(present) > 1 else 0)
    return tuple(rank for rank in range(world) if rank not in present), world
