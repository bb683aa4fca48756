"""Right answers on a test split, each sample on exactly one rank."""

from __future__ import annotations

import torch

from stepscope.datasets import Split
from stepscope.rank.loading import eval_batches
from stepscope.rank.mesh import Mesh
from stepscope.rank.precision import Numerics
from stepscope.rank.workloads import Task

MIN_BATCH = 256


@torch.no_grad()
def correct_answers(task: Task, numerics: Numerics, test: Split, mesh: Mesh, *, micro_batch: int) -> float:
    """Number of right answers in this rank's share of ``test``, in evaluation mode; 0 where another rank counts them."""
    assert task.correct is not None
    task.module.eval()
    correct = 0.0
    batches = eval_batches(
        test,
        rank=mesh.data_rank,
        world_size=mesh.data_size,
        micro_batch=max(micro_batch, MIN_BATCH),
        device=mesh.device,
    )
    for batch in batches:
        x, y = numerics.inputs(*batch)
        with numerics.autocast():
            correct += float(task.correct(task.module(x), y))
    task.module.train()
    return correct if mesh.counts else 0.0
