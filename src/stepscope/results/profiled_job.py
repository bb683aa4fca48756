"""A folder of ``stepscope profile`` or ``run``: what its ranks recorded of all their steps, beside the window's traces."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, median
from typing import Any

from stepscope.core.dataclass import dataclass
from stepscope.records.profile import HookedRank, JobEnd, ProfileRecord, WindowOfRank
from stepscope.results.diary import JobSteps, job_steps
from stepscope.results.job_end import read_job_end
from stepscope.store.diary import RankDiary, read_diaries
from stepscope.store.layout import ProfileLayout
from stepscope.store.reader import read_if_there, read_record


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledJob:
    """name: the folder's. steps: None where no rank made a step. facts: of the model and its wrappers, as rank 0's hook
    found them, {} where it did not. profiled_ns: of each rank, the steps of the latest window that left traces.
    end: None while the job runs.
    """

    name: str
    folder: Path
    record: ProfileRecord
    diaries: tuple[RankDiary, ...]
    steps: JobSteps | None
    facts: Mapping[str, Any]
    profiled_ns: tuple[tuple[int, ...], ...] = ()
    end: JobEnd | None = None

    @property
    def steps_profiled(self) -> int:
        return max(map(len, self.profiled_ns), default=0)

    @property
    def profiled_step_ns(self) -> float | None:
        """Median step of the window, mean over ranks; None where no window left traces."""
        times = [median(each) for each in self.profiled_ns if each]
        return float(fmean(times)) if times else None

    @property
    def on_cpu(self) -> bool | None:
        """Whether all of the optimizer's parameters lie on the CPU; None: not recorded."""
        devices = (self.facts.get("optimizer") or {}).get("devices")
        return None if not devices else set(devices) == {"cpu"}

    @property
    def loads_ahead(self) -> bool:
        """Whether worker processes load the next batches while a rank is busy or waits."""
        return bool(((self.facts.get("loaders") or {}).get("first") or {}).get("num_workers"))

    @property
    def cores_a_rank(self) -> int | None:
        """Usable cores of rank 0's host / ranks that stepped there, at least 1; None: not recorded."""
        cores = (self.facts.get("machine") or {}).get("cores")
        if cores is None or not self.diaries:
            return None
        here = {each.rank for each in self.diaries if each.header.host == self.diaries[0].header.host}
        return max(1, int(cores) // len(here))


def read_profiled_job(folder: Path) -> ProfiledJob | None:
    """The job whose folder this is; None for any other folder. Raises DataError for damaged files."""
    layout = ProfileLayout(folder)
    record = read_if_there(layout.record, ProfileRecord)
    if record is None:
        return None
    diaries = read_diaries(layout)
    ranks = [read_record(path, HookedRank) for path in layout.ranks()]
    windows = layout.windows()
    reports = [read_record(path, WindowOfRank) for path in layout.window_ranks(windows[-1])] if windows else []
    return ProfiledJob(
        name=folder.resolve().name,
        folder=folder,
        record=record,
        diaries=diaries,
        steps=job_steps(diaries),
        facts=next((facts for rank in ranks if (facts := getattr(rank, "facts", None))), {}),
        end=read_job_end(layout),
        profiled_ns=tuple(report.profiled_ns for report in reports if report.status == "written"),
    )
