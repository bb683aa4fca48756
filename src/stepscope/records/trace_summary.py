"""What `trace` finds: one pass per rank, and what the ranks say together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from stepscope.core.dataclass import dataclass

if TYPE_CHECKING:  # a trace is read for some of them at a time
    from stepscope.records.job_setup import JobSetup
    from stepscope.records.replay import RankStep
    from stepscope.records.trace_buckets import BucketRow
    from stepscope.records.trace_budget import (
        BudgetVerdict,
        GroupBudget,
        IdleCause,
        LongGap,
        OutsideWork,
        PhaseBudget,
        RankBudget,
        StepBudget,
    )
    from stepscope.records.trace_collectives import JobCollectives, RankCommunication
    from stepscope.records.trace_conformance import ConformanceCheck
    from stepscope.records.trace_diff import WorkProfile
    from stepscope.records.trace_memory import DeviceMemory
    from stepscope.records.trace_modules import ModuleRow
    from stepscope.records.trace_path import CriticalPath, CrossRankPath, RankLegs
    from stepscope.records.trace_rules import (
        BackwardPasses,
        GradientSync,
        HostLateness,
        KernelMix,
        MeasuredBubble,
        StageWaits,
    )
    from stepscope.records.trace_stragglers import StragglerReport
    from stepscope.records.trace_timeline import RankSpans
    from stepscope.records.trace_units import DividedLayers, ShardedUnits
    from stepscope.records.trace_utilisation import Utilisation
    from stepscope.records.trace_work import (
        AnnotationRow,
        CopyTable,
        KernelTable,
        LaunchStatistics,
        OperatorTable,
        SequenceRow,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileNote:
    """What was repaired, left out or assumed in reading one rank's file."""

    rank: int | None
    kind: str  # repaired | truncated | dropped | assumed | skipped | unread
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A section that a trace cannot answer, and why."""

    section: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
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

    @property
    def unread(self) -> str | None:
        """Why the rank's device was not read, so that there is no budget; None where it was, or there is none."""
        return next((note.text for note in self.notes if note.kind == "unread"), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankVerdict:
    rank: int
    verdict: BudgetVerdict


LOSSES = ("truncated", "skipped", "missing", "dropped", "unread")
"""Kinds of notes that say what was not looked at."""


def common_steps(ranks: Iterable[RankPass]) -> tuple[int, ...] | None:
    """Numbers of the steps that every rank with marked steps recorded, ascending; None where no rank has any."""
    recorded = [{s.step for s in each.steps} for each in ranks if each.steps]
    return tuple(sorted(set.intersection(*recorded))) if recorded else None


@dataclass(frozen=True, slots=True, kw_only=True)
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

    @property
    def common_steps(self) -> tuple[int, ...] | None:
        """What may be compared between ranks; None where no rank marked its steps, empty where none is common."""
        return common_steps(self.ranks)

    @property
    def losses(self) -> tuple[FileNote, ...]:
        """Notes of the job and its ranks that say what was not looked at."""
        notes = (*self.notes, *(note for each in self.ranks for note in each.notes))
        return tuple(note for note in notes if note.kind in LOSSES)
