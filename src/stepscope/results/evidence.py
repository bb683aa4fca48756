"""Everything that rules, reports and comparisons know: from run folders, traces and what importers read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.core.dataclass import record

if TYPE_CHECKING:
    from stepscope.machine.topology import Topology
    from stepscope.records.calibration import Calibration
    from stepscope.records.cell import CellSpec, RunRecord
    from stepscope.records.comm import Arrivals, CommRow
    from stepscope.records.comparison import ScalingBudget
    from stepscope.records.environment import EnvironmentRecord
    from stepscope.records.imported import MachineReading, MemorySnapshot, Sign
    from stepscope.records.nccl import FlightFinding, NcclDebug
    from stepscope.records.samples import CellResult
    from stepscope.records.trace_summary import TraceSummary
    from stepscope.records.training import ScalingRow, TrainingRun
    from stepscope.results.dry_job import DryJob
    from stepscope.results.profiled_job import ProfiledJob


ORIGIN_MARK = ": "
"""Between a source and its cell, where several sources measured the same."""


@record
class Source:
    """One path and what it was. kind: bench | comm | trace | calibration | imported; format: the importer's key.

    created: when a run folder of ours was begun or last resumed (UTC, ISO 8601). columns: as in ``Imported``.
    """

    path: Path
    kind: str
    format: str | None = None
    created: str | None = None
    columns: tuple[str, ...] | None = None


@record
class FilesFound:
    """Files of one kind in a folder that was named. job: the subfolder of their job, "" for the folder's own.

    left_out: why they were not read; None: they were.
    """

    kind: str
    files: int
    bytes: int
    job: str = ""
    left_out: str | None = None


@record
class CellEvidence:
    """One cell of `bench`: its run as every other, and the samples of all its ranks.

    ``run.run_id`` may carry the run folder's name where several are looked at; ``cell_id`` never does.
    """

    run: TrainingRun
    result: CellResult

    @property
    def spec(self) -> CellSpec:
        return self.result.spec

    @property
    def cell_id(self) -> str:
        return self.result.spec.cell_id


@record
class TraceEvidence:
    """One capture of a job: its traces. name: the folder, or the label of the cell that they are of; cell_id: of that cell.

    source: run folder of that cell, as its run has it; None: there is one. job: the folder of the job, which other captures
    may be of, too; None: this is the only one.
    """

    name: str
    summary: TraceSummary
    cell_id: str | None = None
    source: str | None = None
    job: Path | None = None

    def is_of(self, cell: CellEvidence) -> bool:
        """Whether these are its traces; the same matrix, run in two folders, has the same cells."""
        return self.cell_id == cell.cell_id and self.source in (None, cell.run.source)


class NoScaling(str):
    """The remark why runs or jobs are not compared as scaling."""

    __slots__ = ()


@record
class Evidence:
    """What is known. Empty or None: there is nothing of that kind, and rules that need it are skipped.

    runs: training runs of all sources; run_id is unique. scaling: runs against their baselines, baselines included.
    cells: those runs that `bench` measured, with their samples. environment: of the run folder, None where sources have
    several different ones. profiled: folders of `profile` and `run`, with the diaries of
    all their steps. dry: dry runs of scripts. flight: what the flight recorders of a job say of a hang.
    signs: what texts say of the job's end, or of what stands in its way. readings: what tools of the machine say of it.
    arrivals: who came last to the collectives of a training.
    files_found: of folders of mixed files,
    what was read and what was not. notes: what was not read, or is doubtful. remarks: how figures were taken, and what they
    do not allow, where all was read.
    """

    sources: tuple[Source, ...]
    runs: tuple[TrainingRun, ...] = ()
    scaling: tuple[ScalingRow, ...] = ()
    cells: tuple[CellEvidence, ...] = ()
    comm: tuple[CommRow, ...] = ()
    arrivals: tuple[Arrivals, ...] = ()
    calibration: Calibration | None = None
    environment: EnvironmentRecord | None = None
    records: tuple[RunRecord, ...] = ()
    traces: tuple[TraceEvidence, ...] = ()
    profiled: tuple[ProfiledJob, ...] = ()
    dry: tuple[DryJob, ...] = ()
    nccl: tuple[NcclDebug, ...] = ()
    flight: tuple[FlightFinding, ...] = ()
    signs: tuple[Sign, ...] = ()
    readings: tuple[MachineReading, ...] = ()
    memory: tuple[MemorySnapshot, ...] = ()
    topology: Topology | None = None
    hardware: tuple[str, ...] = ()
    scaling_budgets: tuple[ScalingBudget, ...] = ()
    files_found: tuple[FilesFound, ...] = ()
    notes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def all_notes(self) -> tuple[str, ...]:
        """Notes, then remarks."""
        return (*self.notes, *self.remarks)

    def trace_of(self, cell_id: str) -> TraceEvidence | None:
        """The traces of a cell, where it was profiled."""
        return next((job for job in self.traces if job.cell_id == cell_id), None)

    def profiled_of(self, job: TraceEvidence) -> ProfiledJob | None:
        """The folder of one's own job whose window these traces are."""
        return next((p for p in self.profiled if job.job and p.folder.resolve() == job.job.resolve()), None)

    @property
    def traced_jobs(self) -> tuple[tuple[TraceEvidence, ...], ...]:
        """The captures of each job, in order."""
        by_job: dict[object, list[TraceEvidence]] = {}
        for number, capture in enumerate(self.traces):
            by_job.setdefault(number if capture.job is None else capture.job, []).append(capture)
        return tuple(map(tuple, by_job.values()))

    @property
    def dry_job(self) -> DryJob | None:
        """The dry run that this is, where it has a step; None for anything else."""
        job = self.dry[0] if len(self.sources) == 1 and self.dry else None
        return job if job is not None and job.worlds else None

    @property
    def flight_recorded(self) -> bool:
        """Whether flight recorders were given, be it that they say nothing of a hang."""
        return any(source.format == "flight_recorder" for source in self.sources)

    @property
    def judged(self) -> bool:
        """Whether there is anything in which a rule sees a problem: not lines on a job's end alone."""
        nccl = any(log.communicators or log.hosts for log in self.nccl)
        there = (self.runs, self.comm, self.traces, self.profiled, self.dry, self.memory, self.flight, self.readings)
        return not self.signs or nccl or any(there)

    @property
    def unread(self) -> int:
        """Files of named folders that were not read."""
        return sum(entry.files for entry in self.files_found if entry.left_out is not None)

    @property
    def complete(self) -> bool:
        """Whether all that was given was read, as far as anything says."""
        return not self.notes and not self.unread


def name_of(run: TrainingRun, between: str = ": ") -> str:
    """``mlp small on synthetic, fp32: ddp on 2 ranks``: group and label, which no two runs of one source share."""
    return f"{run.group}{between}{run.label}"


def in_line(run: TrainingRun) -> str:
    """Return the run's name for use within a sentence or a heading, where a colon says something else."""
    return name_of(run, ", ")


def cell_of(evidence: Evidence, run: TrainingRun) -> CellEvidence | None:
    """Return the cell of `bench` that a run is, or None for a run of another tool."""
    return next((cell for cell in evidence.cells if cell.run.run_id == run.run_id), None)


NEEDS: Mapping[str, tuple[str, str | None]] = {
    "runs": ("no training runs were given", "stepscope bench MATRIX.yaml"),
    "scaling": (
        "no run has a baseline on fewer ranks",
        "stepscope bench --preset strong-scaling",
    ),
    "scaling_budgets": ("no two jobs on different numbers of ranks to compare", None),
    "cells": ("no step samples: not a run of stepscope bench", "stepscope bench MATRIX.yaml"),
    "comm": ("no collectives were measured", "stepscope comm --ops all_reduce --sizes 1K:64M:4"),
    "arrivals": ("no files of the NCCL Inspector of all ranks were given", None),
    "calibration": ("no calibration was given", "stepscope calibrate COMM"),
    "environment": ("the machine was not recorded", None),
    "traces": ("no trace was given", "stepscope bench MATRIX.yaml --profile"),
    "nccl": ("no NCCL log was given", "export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,NET,GRAPH,TUNING"),
    "flight": ("no flight recorder dumps were given", "export TORCH_FR_BUFFER_SIZE=2000"),
    "signs": ("no text of a job that failed was given", None),
    "readings": ("no output of a tool of the machine was given (nvidia-smi, ibstat, ib_write_bw)", "nvidia-smi -q"),
    "memory": ("no memory snapshot was given: torch.cuda.memory._dump_snapshot('memory.pickle') writes one", None),
    "topology": ("no link matrix was recorded", "nvidia-smi topo -m"),
    "dry": ("no dry run of a script was given", "stepscope predict --gpus 8 --gpu h100-sxm -- COMMAND"),
}
"""Attribute of :class:`Evidence` -> (why a rule that needs it is skipped, what gets it)."""
