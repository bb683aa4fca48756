"""One optimizer step, timed: the code path of every measured, profiled and checked step.

Beside it: recomputation, the check that replicas are still replicas, and right answers on a test split.

Faults of a cell (records/injection.py), as its ranks lose the time.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from stepscope.datasets import Split
from stepscope.rank.loading import Batch, eval_batches
from stepscope.rank.memory import Recomputed
from stepscope.rank.mesh import Mesh
from stepscope.rank.precision import Numerics
from stepscope.rank.sampling import StepSamples
from stepscope.rank.strategies import Session
from stepscope.rank.timer import (
    BACKWARD,
    COMMUNICATION,
    DATA,
    FORWARD,
    OPTIMIZER,
    WAIT,
    GradientReadiness,
    PendingStep,
    Regions,
    StepTimer,
)
from stepscope.rank.workloads import Task
from stepscope.records.cell import CellSpec, Checkpointing
from stepscope.records.injection import injection_of

REMEMBERED = 9
"""Steps whose median is the rank's own computation: one disturbed step must not change what is planted."""


class PlantedFaults:
    """Sleeps where a real fault would take the time: before a step's first batch, and before its computation.

    A sleep takes no core from the other ranks, as a slower processor would not. Shares are of the rank's own computation
    (forward, backward, optimizer; without waiting for others), the median of its last steps: a cell's first step loses none.
    """

    def __init__(self, cell: CellSpec, *, rank: int, device: torch.device) -> None:
        injection = injection_of(cell.inject)
        self._slow = next((s.by for s in injection.slow if s.rank == rank), None)
        self._jitter, self._loader = injection.jitter, injection.loader
        self._draw = random.Random(f"{cell.seed} {rank}")
        self._device = device
        self._own: deque[float] = deque(maxlen=REMEMBERED)
        self._pending: deque[tuple[PendingStep, int]] = deque()
        self._computing_ns = 0
        self._lost: dict[str, list[int]] = {}

    @property
    def lost_ns(self) -> dict[str, int]:
        """Median over the steps since ``forget``, by kind, as the clock says."""
        return {kind: round(median(lost)) for kind, lost in self._lost.items()}

    def forget(self) -> None:
        """Start ``lost_ns`` anew: warm-up is over."""
        self._lost.clear()

    def before_batch(self) -> None:
        """Sleep for the loader's part of a step."""
        self._learn()
        if self._loader is not None:
            self._lose("loader", self._loader.of(self._own_ns))

    def before_compute(self) -> None:
        """Sleep for the part of a step's computation."""
        self._computing_ns = 0
        if self._slow is not None:
            self._computing_ns += self._lose("slow_rank", self._slow.of(self._own_ns))
        if self._jitter is not None:
            self._computing_ns += self._lose("jitter", self._draw.random() * self._jitter.of(self._own_ns))

    def after_step(self, pending: PendingStep) -> None:
        """Learn how long this rank computes by itself, when the device knows."""
        self._pending.append((pending, self._computing_ns))

    @property
    def _own_ns(self) -> float:
        return median(self._own) if self._own else 0.0

    def _learn(self) -> None:
        while self._pending and self._pending[0][0].done():
            pending, lost = self._pending.popleft()
            times = pending.times()
            self._own.append(times.forward_ns + times.backward_compute_ns + times.optimizer_ns - lost)

    def _lose(self, kind: str, ns: float) -> int:
        """Sleep so many ns; return the ns lost."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # work queued before would hide the sleep
        began = time.perf_counter_ns()
        time.sleep(max(0.0, ns) / 1e9)
        lost = time.perf_counter_ns() - began
        self._lost.setdefault(kind, []).append(lost)
        return lost


@dataclass(frozen=True, slots=True)
class Stepped:
    """What one step leaves behind: times and loss to read later, without making the device wait now."""

    pending: PendingStep
    loss_sum: Tensor
    samples: int
    host_data_ns: int


class Training:
    """A model under a strategy with its optimizer; ``step`` runs one window of micro-batches."""

    def __init__(
        self,
        cell: CellSpec,
        task: Task,
        session: Session,
        numerics: Numerics,
        timer: StepTimer,
        readiness: GradientReadiness | None,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        planted: PlantedFaults | None = None,
    ) -> None:
        self._cell = cell
        self._task = task
        self._session = session
        self._numerics = numerics
        self._timer = timer
        self._readiness = readiness
        self._planted = planted
        own = task.optimizer if cell.optimizer == "own" else None
        self.optimizer = optimizer or (session.optimizer(own) if own else make_optimizer(cell, session))
        self._rates = [group["lr"] for group in self.optimizer.param_groups]
        norm = cell.clip
        self._clip = None if norm is None else lambda: session.clip(norm)
        self._steps = 0

    def step(self, window: StepSamples, batches: Iterator[Batch], regions: Regions) -> Stepped:
        """Make one optimizer step over ``window``. Gradient = sum of sample losses / global samples, over all ranks."""
        self._set_learning_rate()
        timer, session, readiness, planted = self._timer, self._session, self._readiness, self._planted
        scale = session.loss_factor / window.global_samples
        losses: list[Tensor] = []
        samples, host_data_ns, last = 0, 0, window.micro_steps - 1
        timer.start()
        for index in itertools.count():
            before = perf_counter_ns()
            with regions(Regions.DATA):
                if planted is not None and index == 0:
                    planted.before_batch()
                x, y = self._numerics.inputs(*next(batches))
            timer.mark(DATA)
            host_data_ns += perf_counter_ns() - before
            samples += self._task.size(y)
            if planted is not None and index == 0:
                with regions(Regions.PLANTED):
                    planted.before_compute()
            with session.micro_step(last=index == last):
                if session.scheduled is not None:
                    loss = session.scheduled(x, y, self._task.loss_sum, scale, self._numerics.autocast, timer.mark)
                else:
                    with self._numerics.autocast():
                        with regions(Regions.FORWARD):
                            output = self._task.forward(session.trainable, x)
                        with regions(Regions.LOSS):
                            loss = self._task.loss_sum(output, y)
                    timer.mark(FORWARD)
                    if readiness is not None:
                        readiness.armed = index == last
                    with regions(Regions.BACKWARD):
                        self._numerics.backward(loss * scale)
                    timer.mark(BACKWARD)
            losses.append(loss.detach())
            if index == last:
                break
        with regions(Regions.COMMUNICATION):
            session.finish()
        timer.mark(COMMUNICATION if session.scheduled is None else WAIT)
        with regions(Regions.OPTIMIZER):
            self._numerics.step(self.optimizer, clip=self._clip)
            session.zero_grad()
        timer.mark(OPTIMIZER)
        self._steps += 1
        pending = timer.stop()
        if planted is not None:
            planted.after_step(pending)
        return Stepped(pending, torch.stack(losses).sum() if last else losses[0], samples, host_data_ns)

    def _set_learning_rate(self) -> None:
        warmup = self._cell.lr_warmup
        if self._steps <= warmup and warmup > 0:
            factor = min(1.0, (self._steps + 1) / warmup)
            for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
                group["lr"] = rate * factor


def make_optimizer(cell: CellSpec, session: Session) -> torch.optim.Optimizer:
    """Make the optimizer of a cell, with torch's defaults for everything a cell does not set."""
    options = {"lr": cell.lr, "weight_decay": cell.weight_decay}
    if cell.optimizer == "sgd":
        return session.optimizer(torch.optim.SGD, momentum=cell.momentum, **options)
    return session.optimizer(torch.optim.AdamW if cell.optimizer == "adamw" else torch.optim.Adam, **options)


_ATEN = torch.ops.aten
KEPT = {
    _ATEN.mm.default,
    _ATEN.addmm.default,
    _ATEN.bmm.default,
    _ATEN._scaled_dot_product_flash_attention_for_cpu.default,
    _ATEN._scaled_dot_product_flash_attention.default,
    _ATEN._scaled_dot_product_efficient_attention.default,
}
"""Operations whose results the selective mode keeps: expensive to repeat (the choice of torchtitan)."""


def recompute(blocks: Sequence[nn.Module], mode: Checkpointing) -> Recomputed:
    """Change the blocks' forward pass, for good; torch's own checkpointing, without reentrant autograd."""
    recomputed = Recomputed(blocks)
    for block in blocks:
        options: dict[str, Any] = {}
        if mode == "selective":
            options["context_fn"] = partial(
                create_selective_checkpoint_contexts, partial(_checkpoint_policy, recomputed)
            )
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, **options)
    return recomputed


def _checkpoint_policy(recomputed: Recomputed, context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Say whether an operation's output is kept or computed again."""
    del args, kwargs
    if op not in KEPT:
        return CheckpointPolicy.PREFER_RECOMPUTE
    if not context.is_recompute:
        given = context.op_output
        for tensor in given if isinstance(given, tuple) else (given,):
            if isinstance(tensor, Tensor):
                recomputed.tell(tensor)
    return CheckpointPolicy.MUST_SAVE


def parameter_checksum(parameters: Iterable[Tensor]) -> str:
    """Return a fingerprint of whole parameters, bit for bit: replicas that trained together have the same one."""
    digest = hashlib.blake2b(digest_size=8)
    for parameter in parameters:
        raw = parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(raw.numpy().data)
    return digest.hexdigest()


MIN_BATCH = 256


@torch.no_grad()
def correct_answers(task: Task, numerics: Numerics, test: Split, mesh: Mesh, *, micro_batch: int) -> float:
    """Count the right answers in this rank's share of ``test``, in evaluation mode; 0 where another rank counts them."""
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
