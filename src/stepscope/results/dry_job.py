"""A dry run opened: what each world records, priced on the GPUs and the network that it is for."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path

from stepscope.core.dataclass import dataclass
from stepscope.core.errors import DataError
from stepscope.core.words import grouped
from stepscope.predict.collectives.choose import known_gpu
from stepscope.predict.collectives.machine import find_fabric
from stepscope.predict.dry.host import HostPricing
from stepscope.predict.dry.lanes import lanes
from stepscope.predict.dry.pipeline import predict_world
from stepscope.predict.dry.step import Pricing
from stepscope.predict.step.alternatives import changed_cluster
from stepscope.predict.step.layout import Cluster
from stepscope.predict.what_if import WhatIf
from stepscope.records.dry_run import DryHeld, DryOperator, DryProfile, DryRank, DryRun
from stepscope.records.prediction import DryLanes, DryStep
from stepscope.results.dry_host import host_pricing
from stepscope.store.layout import DryLayout
from stepscope.store.reader import read_if_there, read_record

CHANGING = ("activations", "gathered", "temporary", "gradients", "buffers")
"""Kinds of memory that a change of the step can spare."""


@dataclass(frozen=True)
class DryJob:
    """A dry run as its folder holds it. ranks: by world, then rank. what: what is priced otherwise; compiled: as if all of
    the model were given to torch.compile. kernel_ns: of operators that were measured. profile: of ranks of the host.
    others: the same script with its wrappers forced otherwise."""

    folder: Path
    run: DryRun
    ranks: tuple[DryRank, ...]
    what: WhatIf = field(default_factory=WhatIf)
    compiled: bool = False
    kernel_ns: Callable[[DryOperator], float] | None = None
    profile: DryProfile | None = None
    others: tuple[DryJob, ...] = ()

    @property
    def name(self) -> str:
        """The script or module that was run, without folders and arguments."""
        words = [word for word in self.run.command if word.endswith(".py")]
        return Path(words[0]).name if words else self.folder.resolve().name

    @property
    def line(self) -> str:
        return shlex.join(self.run.command)

    @cached_property
    def worlds(self) -> dict[int, tuple[DryRank, ...]]:
        """The ranks of each world that has a step of every rank that was run."""
        failed = {failure.world_size for failure in self.run.failures}
        by_world = grouped(self.ranks, lambda rank: rank.world_size)
        return {world: tuple(ranks) for world, ranks in sorted(by_world.items()) if world not in failed}

    def cluster(self, world: int) -> Cluster:
        """Return the machine of a world. Raises UsageError with did-you-mean."""
        assert self.run.gpu is not None
        gpu = known_gpu(self.run.gpu)
        cluster = Cluster(
            gpu=gpu,
            gpus=world,
            gpus_per_node=self.run.ranks_per_node,
            network=None if self.run.network is None else find_fabric(self.run.network, gpu_key=gpu.key),
            adapters_per_node=self.run.adapters,
        )
        return changed_cluster(cluster, self.what)

    def priced(self, world: int) -> DryStep:
        """Return the step of a world."""
        ranks = [replace(rank, compiled=("",)) if self.compiled else rank for rank in self.worlds[world]]
        pricing = self._pricing(world)
        if isinstance(pricing, Pricing):
            return predict_world(ranks, pricing)
        if ranks[0].pipeline is not None:
            raise DataError(f"{self.folder}: a pipeline on ranks of the host is not priced", fix="give a GPU: --gpu")
        return pricing.whole(ranks[0])

    def _pricing(self, world: int) -> Pricing | HostPricing:
        if self.profile is not None:
            return host_pricing(self.profile, self.ranks, overlap=self.what.overlap is not None)
        return Pricing(cluster=self.cluster(world), kernel_ns=self.kernel_ns, overlap=self.what.overlap is not None)

    @cached_property
    def lanes(self) -> DryLanes | None:
        """The step of the fullest rank of the largest world over time; None where it is not of one rank alone."""
        world = max(self.worlds)
        return lanes(self.fullest(world), self._pricing(world))

    @cached_property
    def steps(self) -> Mapping[int, DryStep]:
        """The step of each world."""
        return {world: self.priced(world) for world in self.worlds}

    @property
    def largest(self) -> DryStep:
        """The step of the largest world."""
        return self.steps[max(self.steps)]

    def fullest(self, world: int) -> DryRank:
        """Return the rank of a world that needs most memory."""
        return max(self.worlds[world], key=lambda rank: rank.memory.peak_bytes)


def read_dry_job(folder: Path) -> DryJob:
    """Return the dry run in ``folder``. Raises DataError."""
    layout = DryLayout(folder)
    run = read_record(layout.record, DryRun)
    profile = read_if_there(layout.profile, DryProfile)
    ranks = tuple(read_record(path, DryRank) for path in layout.ranks())
    others = tuple(read_dry_job(path) for path in layout.others())
    if profile is not None:  # what its ranks call is needed to read it
        own = tuple(rank for rank in ranks if rank.world_size == profile.world_size)
        others = tuple(replace(other, profile=profile, ranks=(*other.ranks, *own)) for other in others)
    job = DryJob(folder=folder, run=run, ranks=ranks, profile=profile, others=others)
    if not job.worlds and not run.failures:
        raise DataError(f"{folder}: no world in it has a step", why="the dry run was stopped", fix="run it again")
    return job


def weightiest(rank: DryRank) -> DryHeld | None:
    """Return the largest of what is alive at the peak that a change of the step can spare; None where there is nothing."""
    storages = [storage for storage in rank.memory.at_peak if storage.kind in CHANGING]
    return max(storages, key=lambda storage: storage.size_bytes, default=None)


def is_logits(storage: DryHeld, rank: DryRank) -> bool:
    """Whether a storage is as wide as the last product of the forward pass, and that is the widest: the output over a
    vocabulary, or what the loss makes of it."""
    widths = [
        rank.operators[index].out_shapes[0][-1]
        for index in rank.order
        if rank.operators[index].phase == "forward" and rank.operators[index].flop and rank.operators[index].out_shapes
    ]
    wide = widths[-1] if widths else 0
    return bool(storage.shape) and wide >= WIDE and wide == max(widths) and storage.shape[-1] == wide


WIDE = 8192
"""Least width of an output that is called logits."""
NOUNS = {"temporary": "temporary tensors", "gathered": "gathered parameters"}


def what_and_where(storage: DryHeld, rank: DryRank) -> str:
    """Name what a storage holds, and the line that made it: ``activations of logits at train.py:88``."""
    shape = "x".join(map(str, storage.shape)) or "small tensors"
    what = "logits" if is_logits(storage, rank) else storage.module or shape
    return f"{NOUNS.get(storage.kind, storage.kind)} of {what}" + (f" at {storage.place}" if storage.place else "")


def speed(step: DryStep) -> float:
    """Return what the job does in a second: tokens, else samples, else steps."""
    return step.tokens_per_s or step.samples_per_s or 1e9 / step.step_ns


def unit_of(steps: Sequence[DryStep]) -> str:
    """Name what ``speed`` counts."""
    first = steps[0]
    return "tokens" if first.tokens_per_s else "samples" if first.samples_per_s else "steps"


def per_gpu(step: DryStep) -> float:
    return speed(step) / step.ranks


def efficiency(step: DryStep, base: DryStep) -> float:
    """Return the speed of one GPU over that of ``base``."""
    return per_gpu(step) / per_gpu(base)
