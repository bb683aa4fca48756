"""A dry run opened: what each world records, and how much of a device's memory that takes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from stepscope.core.dataclass import dataclass, record
from stepscope.core.errors import DataError
from stepscope.core.words import grouped
from stepscope.machine.peaks import Accelerator
from stepscope.predict.collectives.choose import known_gpu
from stepscope.predict.step.calibration import MEMORY_LIMIT, PUBLISHED
from stepscope.records.dry_run import MEMORY_KINDS, DryHeld, DryRank, DryRun
from stepscope.store.layout import DryLayout
from stepscope.store.reader import read_record

MOVING = ("activations", "gathered", "temporary")
"""Kinds that come and go in a step: the allocator loses room between them."""


@record
class DryPeak:
    """The fullest rank of a world at its fullest. recorded: bytes by kind. base: context, libraries, buffers of
    communication; slack: what the allocator loses: constants of the step model, fitted on published runs."""

    rank: DryRank
    gpu: Accelerator
    recorded: Mapping[str, int]
    base: float
    slack: float

    @property
    def total(self) -> float:
        return sum(self.recorded.values()) + self.base + self.slack

    @property
    def share(self) -> float:
        """Of the memory that the device's driver reports."""
        return self.total / self.gpu.total_bytes

    @property
    def fits(self) -> bool:
        """Whether it fits with the reserve of ``MEMORY_LIMIT``."""
        return self.share <= MEMORY_LIMIT

    @property
    def tight(self) -> bool:
        return MEMORY_LIMIT < self.share <= 1

    @property
    def largest(self) -> DryHeld | None:
        """The largest of what is alive, parameters and optimizer aside where anything else is as large as half of it."""
        storages = self.rank.memory.at_peak
        changing = [held_one for held_one in storages if held_one.kind in (*MOVING, "gradients")]
        first = max(storages, key=lambda one: one.size_bytes, default=None)
        moving = max(changing, key=lambda one: one.size_bytes, default=None)
        return moving if moving and first and moving.size_bytes >= first.size_bytes / 2 else first


@dataclass(frozen=True)
class DryJob:
    """A dry run as its folder holds it. ranks: by world, then rank."""

    folder: Path
    run: DryRun
    ranks: tuple[DryRank, ...]

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @cached_property
    def gpu(self) -> Accelerator:
        """The GPU that it is priced on."""
        return known_gpu(self.run.gpu or "h100-sxm")

    @cached_property
    def worlds(self) -> dict[int, tuple[DryRank, ...]]:
        """The ranks of each world that has a step of all ranks that were run."""
        failed = {failure.world_size for failure in self.run.failures}
        by_world = grouped(self.ranks, lambda rank: rank.world_size)
        return {world: tuple(ranks) for world, ranks in sorted(by_world.items()) if world not in failed}

    def peak(self, world: int) -> DryPeak:
        """Return the peak of the rank that needs most."""
        rank = max(self.worlds[world], key=lambda rank: rank.memory.peak_bytes)
        recorded = dict(zip(MEMORY_KINDS, rank.memory.peak, strict=True))
        slack = (PUBLISHED.fragmentation - 1) * sum(recorded[kind] for kind in MOVING)
        return DryPeak(rank=rank, gpu=self.gpu, recorded=recorded, base=PUBLISHED.base_bytes, slack=slack)


def read_dry_job(folder: Path) -> DryJob:
    """Return the dry run in ``folder``. Raises DataError."""
    layout = DryLayout(folder)
    run = read_record(layout.record, DryRun)
    ranks = tuple(read_record(path, DryRank) for path in layout.ranks())
    job = DryJob(folder=folder, run=run, ranks=ranks)
    if not job.worlds and not run.failures:
        raise DataError(f"{folder}: no world in it has a step", why="the dry run was stopped", fix="run it again")
    return job
