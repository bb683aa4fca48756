"""Three profiled steps, after and apart from the timed ones; every rank profiles the same steps."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from stepscope.rank.instruments.regions import STEP, Regions
from stepscope.rank.loading import Batch
from stepscope.rank.sampling import StepSamples
from stepscope.rank.startup import RankContext
from stepscope.rank.training import Training
from stepscope.records import codec
from stepscope.records.cell import CellSpec
from stepscope.records.plan import CommOp
from stepscope.store.layout import CellLayout
from stepscope.store.writer import make_dir, writing

WARMUP_STEPS = 1
PROFILED_STEPS = 3


def profile_steps(
    cell: CellSpec,
    context: RankContext,
    training: Training,
    windows: Iterator[tuple[StepSamples, Iterator[Batch]]],
    plan: tuple[CommOp, ...],
    files: CellLayout,
) -> str:
    """Write this rank's trace (Kineto JSON, gzip) and return its path relative to the cell's folder."""
    rank = context.mesh.rank
    make_dir(files.traces)
    path = files.trace(rank)
    activities = [ProfilerActivity.CPU]
    if context.mesh.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    regions = Regions(enabled=True)
    # Only what changes between ranks and cells; the profiler itself adds the world and its groups (distributedInfo).
    metadata = {
        "rank": rank,
        "world_size": cell.world_size,
        "host": context.pulse.host,
        "strategy": cell.strategy,
        "cell_id": cell.cell_id,
        "mesh": dict(cell.mesh),
        "communication_plan": codec.to_builtins(plan),
    }
    context.control.barrier()
    with profile(
        activities=activities,
        schedule=schedule(wait=0, warmup=WARMUP_STEPS, active=PROFILED_STEPS, repeat=1),
        on_trace_ready=lambda profiler: _export(profiler, path),
        record_shapes=True,
        profile_memory=True,
    ) as profiler:
        for number in range(WARMUP_STEPS + PROFILED_STEPS):
            window, batches = next(windows)
            with regions(STEP):
                training.step(window, batches, regions)
            if number == WARMUP_STEPS + PROFILED_STEPS - 1:
                # Before the last step(): metadata added later is lost without a word.
                for key, value in metadata.items():
                    profiler.add_metadata_json(f"stepscope.{key}", json.dumps(value))
            profiler.step()
    if context.group.tensorboard_dir is not None:
        _copy_for_tensorboard(path, Path(context.group.tensorboard_dir), cell, context)
    return str(path.relative_to(files.root))


def _export(profiler: torch.profiler.profile, path: Path) -> None:
    with writing(path):
        profiler.export_chrome_trace(str(path))


def _copy_for_tensorboard(path: Path, folder: Path, cell: CellSpec, context: RankContext) -> None:
    """TensorBoard's profiler page looks for RUN/WORKER.TIME.pt.trace.json.gz."""
    run = make_dir(folder / cell.cell_id)
    worker = f"{context.pulse.host}_rank{context.mesh.rank}"
    target = run / f"{worker}.{time.time_ns() // 1_000_000}.pt.trace.json.gz"
    with writing(target):
        shutil.copyfile(path, target)
