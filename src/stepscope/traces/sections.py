"""The sections of a trace, each declared once, and what a reading of traces is asked for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field
from typing import Literal

from stepscope.core.dataclass import record


@record
class TraceSection:
    """One thing that a trace is asked for.

    view: file of ``report/views`` that has its table; None: it has none of its own.
    work: module and function of ``traces`` that finds it in one rank's ``RankView``; None: any full reading does.
    field: of ``RankPass`` that it fills, where that is called otherwise. beside: the section that it comes with.
    shown: by `trace`, unless it is asked for others. scanned: found of the device's events alone, the overlap without its
    steps. ruled: the rules read it. options: of `trace`, that it alone obeys.
    """

    name: str
    view: str | None = None
    work: str | None = None
    field: str | None = None
    beside: str | None = None
    shown: bool = False
    scanned: bool = False
    ruled: bool = False
    options: tuple[str, ...] = ()


SECTIONS = (
    TraceSection(name="budget", view="budget", shown=True, scanned=True),
    TraceSection(name="overlap", view="budget", scanned=True),
    TraceSection(name="steps", view="budget", options=("steps",)),
    TraceSection(name="phases", view="budget", options=("region",)),
    TraceSection(name="idle", view="budget"),
    TraceSection(name="collectives", view="collectives", shown=True),
    TraceSection(name="groups", view="collectives"),
    TraceSection(name="stragglers", view="path", shown=True),
    TraceSection(name="buckets", view="units", work="buckets.bucket_rows", ruled=True),
    TraceSection(name="units", view="units", work="units.sharded_units", ruled=True),
    TraceSection(name="layers", view="units", work="modules.divided_layers"),
    TraceSection(name="operators", view="operators", work="operators.operator_table", options=("sort",)),
    TraceSection(name="kernels", view="kernels", work="kernels.kernel_table"),
    TraceSection(name="launches", view="operators", work="idle.launch_statistics"),
    TraceSection(name="copies", view="kernels", work="kernels.copy_table", ruled=True),
    TraceSection(name="annotations", view="operators", work="modules.annotation_rows"),
    TraceSection(name="modules", view="operators", work="modules.module_rows"),
    TraceSection(name="sequences", view="kernels", work="kernels.sequence_rows"),
    TraceSection(name="memory", view="kernels", work="memory.memory_timeline"),
    TraceSection(
        name="utilisation", view="operators", work="utilisation.utilisation", options=("flop", "hardware_flop")
    ),
    TraceSection(name="path", view="path", work="critical_path.critical_path"),
    TraceSection(name="conformance", view="collectives"),
    TraceSection(name="mfu", work="full_pass.utilisation_where_known", field="utilisation", ruled=True),
    TraceSection(name="job_path", work="critical_path.legs", field="legs", beside="path"),
    TraceSection(name="replay", work="replay.rank_steps"),
    TraceSection(name="profile", work="diff.work_profile"),
    TraceSection(name="spans", work="timeline_spans.timeline_spans"),
)
"""In the order in which they are shown; those without a table are what other commands ask for."""

SCANNED = frozenset(section.name for section in SECTIONS if section.scanned)

EVERYTHING = frozenset(section.name for section in SECTIONS if section.view and section.work)
"""What costs extra beyond the budget; steps, phases, idle causes and collectives come with any full reading."""

BY_STEP = EVERYTHING | {"profile"}
"""With operators and kernels by step: what ranks of a job that was timed are compared by."""

FOR_FINDINGS = frozenset(section.name for section in SECTIONS if section.ruled)
"""What the rules read beyond any full reading; the rest of the sections only adds to their evidence. mfu: the utilisation,
where the trace has what it takes (FLOP or shapes, a known device)."""


KernelClass = Literal["computation", "communication", "copies"]
StatedClass = tuple[KernelClass, str]
"""A class that the user states, and a pattern of the names of the kernels that are of it."""


@record
class Wanted:
    """What is asked of traces, and how they are read. FLOP are per step and rank; None: what the trace recorded.

    scan: device events alone for now, whatever is wanted; a trace without any is read in full.
    regions: (how the name of a range begins, phase) as the user states them. classes: of kernels, likewise; the first that
    fits a name counts. ranks: by path or name of files that do not
    record theirs. sample: only these ranks are read, and notes say what that leaves open. window: which of several captures
    of the same ranks, the oldest 1; None: the newest that has all ranks. cache: keep the columns of each
    file for the next time. processes: at the same time; None: one per core, where that pays. scheduler: of a dask cluster
    whose workers read.
    """

    sections: frozenset[str] = EVERYTHING
    sort: str = "device_self"
    model_flop: float | None = None
    hardware_flop: float | None = None
    scan: bool = False
    regions: tuple[tuple[str, str], ...] = ()
    classes: tuple[StatedClass, ...] = ()
    ranks: Mapping[str, int] = field(default_factory=dict)
    sample: Collection[int] | None = None
    window: int | None = None
    cache: bool = False
    processes: int | None = None
    scheduler: str | None = None

    @property
    def device_only(self) -> bool:
        return self.scan or self.sections <= SCANNED


EVERY = Wanted()
"""Every section, as the files say."""
