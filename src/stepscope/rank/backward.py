"""A few steps without reductions after the timed ones: the backward profile that a bucket timeline is made of.

The same train loop, model, precision, optimizer, batches and strategy, but no micro-step is ever the last one for
the strategy: that is its own switch for "do not reduce now" (``no_sync`` in DDP), so gradients land where they
always do, in views of buckets for instance, and nothing is closed or rebuilt. All ranks run at the same time,
because in the real step, too, they share the host. Replicas drift apart here: nothing may be measured or compared
afterwards.

A pipeline has its own few steps: what its stages computed in them, by a clock that stands still while a rank calls a
collective or waits for one.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from time import perf_counter_ns
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import _functional_collectives as functional
from torch.utils.hooks import RemovableHandle

from stepscope.rank.loading import Batch
from stepscope.rank.precision import Numerics
from stepscope.rank.sampling import StepSamples
from stepscope.rank.strategies import PlainSession, Session
from stepscope.rank.strategies.pipeline import PipelineSession
from stepscope.rank.timer import (
    BACKWARD,
    FORWARD,
    ClockName,
    PendingStep,
    Regions,
    StepTimes,
    between_ns,
    cuda_event,
    step_timer,
)
from stepscope.rank.training import Training
from stepscope.rank.workloads import Task
from stepscope.records.cell import CellSpec
from stepscope.records.mesh import PipelineProfile, PipelineSpan
from stepscope.records.prediction import BackwardProfile, ReadyGradient


class ReadinessTimer:
    """A step timer that also keeps when the gradients of the last micro-step became ready.

    A hook on every parameter costs more than ``GradientReadiness``, which only needs the last one: for steps of their own,
    not for timed ones. On GPU the times are those of the compute stream, so ``offsets`` waits for the device.
    """

    def __init__(self, module: nn.Module, device: torch.device, *, now: Callable[[], int] = perf_counter_ns) -> None:
        self._inner = step_timer(device, now=now)
        self.clock: ClockName = self._inner.clock
        self._stamp: Callable[[], Any] = _cuda_stamp if self.clock == "cuda_event" else now
        self._begin: Any = None
        self._end: Any = None
        self._ready: dict[str, Any] = {}
        self._handles: list[RemovableHandle] = [
            p.register_post_accumulate_grad_hook(partial(self._fire, name))  # type: ignore[no-untyped-call]
            for name, p in module.named_parameters()
            if p.requires_grad
        ]

    def start(self) -> None:
        self._inner.start()

    def mark(self, what: int) -> None:
        """Note when the forward pass begins and the backward pass ends."""
        self._inner.mark(what)
        if what == FORWARD:
            self._ready.clear()
            self._begin = self._stamp()
        elif what == BACKWARD:
            self._end = self._stamp()

    def ready(self) -> None:
        """Do nothing: without reductions a step has no exposed communication to tell apart."""

    def stop(self) -> PendingStep:
        return self._inner.stop()

    def offsets(self) -> tuple[dict[str, int], int]:
        """Return the ready time of each parameter that got a gradient, in order, and the backward pass's duration, ns.

        Of the last micro-step of the last step, since its backward pass began.
        """
        return {name: self._since_begin(at) for name, at in self._ready.items()}, self._since_begin(self._end)

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _fire(self, name: str, _: Tensor) -> None:
        self._ready[name] = self._stamp()

    def _since_begin(self, stamp: Any) -> int:
        if self.clock == "perf_counter":
            return int(stamp - self._begin)
        self._end.synchronize()
        return between_ns(self._begin, stamp)


def _cuda_stamp() -> torch.cuda.Event:
    event = cuda_event()
    event.record()
    return event


@contextmanager
def without_waits() -> Iterator[Callable[[], int]]:
    """Give the block a clock in ns that stands still while a CPU rank's host waits for torch's collectives from Python,
    functional ones included."""
    waited = 0

    def timed(wait: Callable[..., Any]) -> Callable[..., Any]:
        """Return the wait with its time added up."""

        def call(*args: Any, **kwargs: Any) -> Any:
            """Wait, and add the time."""
            nonlocal waited
            begun = perf_counter_ns()
            try:
                return wait(*args, **kwargs)
            finally:
                waited += perf_counter_ns() - begun

        return call

    work, tensor = dist.Work.wait, functional.wait_tensor
    dist.Work.wait, functional.wait_tensor = timed(work), timed(tensor)  # type: ignore[method-assign]
    try:
        yield lambda: perf_counter_ns() - waited
    finally:
        dist.Work.wait, functional.wait_tensor = work, tensor  # type: ignore[method-assign]


MOST_STEPS = 15
BUDGET_NS = 2_000_000_000
"""No further step is begun when the longest one so far would not end within it; one step is always made."""


TOGETHER = 6
"""Steps on each rank where ranks wait for each other."""


class WithoutReductions(PlainSession):
    """A session that is told at every micro-step that reductions may not start yet, and never to finish."""

    def __init__(self, session: Session) -> None:
        super().__init__(session.trainable)
        self._session = session
        self.loss_factor = session.loss_factor

    def micro_step(self, *, last: bool) -> AbstractContextManager[None]:
        del last
        return self._session.micro_step(last=False)

    def finish(self) -> None:
        """Do nothing: each rank keeps its own gradients."""

    def zero_grad(self) -> None:
        self._session.zero_grad()

    def close(self) -> None:
        """Do nothing: the session below goes on."""


def backward_profile(
    cell: CellSpec,
    task: Task,
    session: Session,
    numerics: Numerics,
    windows: Iterator[tuple[StepSamples, Iterator[Batch]]],
    *,
    device: torch.device,
    optimizer: torch.optim.Optimizer,
    sharded: bool = False,
    together: bool = False,
) -> BackwardProfile:
    """Return the profile of at most ``MOST_STEPS`` whole steps; each rank decides for itself, as nothing travels.

    together: something travels (sharded models cannot compute without, zero1 sends parameters): all ranks make
    ``TOGETHER`` steps, by a clock that stands still while they wait. sharded: gradients have no time of their own.
    windows: without end, at least one in an epoch is full.
    """
    with without_waits() if together else nullcontext(perf_counter_ns) as now:
        timer = ReadinessTimer(torch.nn.Module() if sharded else task.module, device, now=now)
        alone = session if sharded else WithoutReductions(session)
        quiet = Training(cell, task, alone, numerics, timer, None, optimizer=optimizer)
        plain = Regions(enabled=False)
        seen: list[tuple[StepTimes, dict[str, int], int]] = []
        began, longest = perf_counter_ns(), 0
        try:
            for window, batches in windows:
                if not window.full:
                    continue
                before = perf_counter_ns()
                if len(seen) == (TOGETHER if together else MOST_STEPS):
                    break
                if seen and not together and before - began + longest > BUDGET_NS:
                    break
                times = quiet.step(window, batches, plain).pending.times()
                seen.append((times, *timer.offsets()))
                longest = max(longest, perf_counter_ns() - before)
        finally:
            timer.close()
    # The first one wakes ranks that have just waited for each other; it stays only where there is hardly another.
    seen = seen[1:] if len(seen) > 3 else seen
    names = [name for name, p in task.module.named_parameters() if p.requires_grad]
    return summarise(seen, names=names, clock=timer.clock, micro_batch=cell.micro_batch, accumulation=cell.accumulation)


def summarise(
    seen: list[tuple[StepTimes, dict[str, int], int]],
    *,
    names: list[str],
    clock: ClockName,
    micro_batch: int,
    accumulation: int,
) -> BackwardProfile:
    """Return medians of ``seen``: (phases, ready time by parameter, duration of the last backward pass) of each step.

    A parameter counts as unused where it was in every step.
    """

    def median(values: list[int]) -> int:
        return round(statistics.median(values))

    backward = median([last for _, _, last in seen])
    in_order = dict.fromkeys(name for _, offsets, _ in seen for name in offsets)
    ready = {name: median([offsets[name] for _, offsets, _ in seen if name in offsets]) for name in in_order}
    return BackwardProfile(
        clock=clock,
        steps=len(seen),
        micro_batch=micro_batch,
        data_wait_ns=median([t.data_wait_ns for t, _, _ in seen]),
        forward_ns=median([t.forward_ns for t, _, _ in seen]),
        # The two readings of one pass lie a call apart: without accumulation that is all there is.
        earlier_backward_ns=median([t.backward_compute_ns - last for t, _, last in seen]) if accumulation > 1 else 0,
        backward_ns=backward,
        optimizer_ns=median([t.optimizer_ns for t, _, _ in seen]),
        other_ns=median([t.other_ns for t, _, _ in seen]),
        # A median over other steps than the whole's may lie a little beyond it.
        ready=tuple(
            ReadyGradient(name=name, ready_ns=min(at, backward))
            for name, at in sorted(ready.items(), key=lambda item: item[1])
        ),
        unused=tuple(name for name in names if name not in ready),
    )


STEPS = 12


def pipeline_profile(
    session: Session,
    training: Training,
    windows: Iterator[tuple[StepSamples, Iterator[Batch]]],
    barrier: Callable[[], None],
) -> PipelineProfile:
    """Return the profile of a first micro-step: the others repeat its schedule. windows: without end, at least one in an
    epoch is full."""
    assert isinstance(session, PipelineSession)
    plain, watch = Regions(enabled=False), session.watch
    steps: list[tuple[PipelineSpan, ...]] = []
    barrier()
    synced = perf_counter_ns()
    watch.synchronize = True
    while len(steps) < STEPS:
        window, batches = next(windows)
        if window.full:
            training.step(window, batches, plain)
            steps.append(tuple(watch.spans[: len(watch.spans) // window.micro_steps]))
    watch.synchronize = False
    return PipelineProfile(layout=session.layout, split=session.split, synced_ns=synced, steps=tuple(steps))
