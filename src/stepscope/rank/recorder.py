"""Samples of one rank, written while the cell runs, so that a killed rank leaves what it measured.

A rank that fails leaves a record of the exception and its kind.
"""

from __future__ import annotations

import math
import os
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from stepscope.core.dataclass import record
from stepscope.core.errors import StepscopeError, failure_sign
from stepscope.rank.heartbeat import Pulse
from stepscope.rank.timer import PendingStep
from stepscope.records.samples import RankError, SamplesHeader, StepSample
from stepscope.store.writer import LineFile


@record
class StepFacts:
    """What the train loop knows about a step when it ends; the times follow when the device is through."""

    round: int
    step: int
    epoch: int
    warmup: bool
    full: bool
    samples: int
    global_samples: int
    host_data_ns: int


class Recorder:
    """Appends steps to a samples file. ``add`` is cheap; encoding and writing happen in ``write_finished`` and ``flush``.

    The caller decides when, at step counts that all ranks share: a rank that writes while the others train would show
    up in their next step as waiting.
    """

    def __init__(self, path: Path, header: SamplesHeader) -> None:
        self._file = LineFile(path, header, "ab")
        self._pending: list[tuple[StepFacts, PendingStep, Tensor]] = []
        self._stream: torch.cuda.Stream | None = None
        self.warmup_step_ns: list[int] = []
        self.timed_step_ns: list[int] = []
        self.epoch_step_ns: dict[int, int] = {}
        self.epoch_loss: dict[int, float] = {}

    def add(self, facts: StepFacts, pending: PendingStep, loss_sum: Tensor) -> None:
        """Add one finished step; ``loss_sum`` is a detached scalar on the device, read later."""
        self._pending.append((facts, pending, loss_sum))

    def flush(self) -> None:
        """Put everything added so far on disk, and into ``warmup_step_ns`` and ``timed_step_ns``. May wait for the
        device."""
        self._put(len(self._pending), with_loss=True)

    def write_finished(self) -> None:
        """Put what the device is through with on disk; never waits for the rest."""
        self._put(self._finished(), with_loss=True)

    def close(self, *, failing: bool = False) -> None:
        """Flush and close. failing: the device may wait for a peer that is gone, so it is asked for nothing."""
        try:
            if failing:
                self._put(self._finished(), with_loss=not any(loss.is_cuda for _, _, loss in self._pending))
            else:
                self.flush()
        finally:
            self._file.close()

    def _finished(self) -> int:
        """Count the leading steps whose last event has passed."""
        return next((i for i, (_, pending, _) in enumerate(self._pending) if not pending.done()), len(self._pending))

    def _put(self, count: int, *, with_loss: bool) -> None:
        """Write the first pending steps. with_loss: read their losses, which waits for the device."""
        ready, self._pending = self._pending[:count], self._pending[count:]
        if not ready:
            return
        losses = self._read([loss for _, _, loss in ready]) if with_loss else [math.nan] * count
        self._file.write(
            *(self._sample(facts, step, loss) for (facts, step, _), loss in zip(ready, losses, strict=True))
        )

    def _read(self, losses: list[Tensor]) -> list[float]:
        """Return the values on the host. They are read on a stream of their own: behind the compute stream's queue the host
        would wait for it."""
        if losses[0].is_cuda:
            self._stream = self._stream or torch.cuda.Stream(losses[0].device)  # type: ignore[no-untyped-call]
            with torch.cuda.stream(self._stream):
                values: list[float] = torch.stack([loss.float() for loss in losses]).tolist()
            return values
        return [float(loss) for loss in losses]

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close(failing=error is not None)

    def _sample(self, facts: StepFacts, pending: PendingStep, loss: float) -> StepSample:
        """Return the sample of a step, and add it to what is counted by epoch."""
        times = pending.times()
        if facts.full:
            (self.warmup_step_ns if facts.warmup else self.timed_step_ns).append(times.step_ns)
        self.epoch_step_ns[facts.epoch] = self.epoch_step_ns.get(facts.epoch, 0) + times.step_ns
        self.epoch_loss[facts.epoch] = self.epoch_loss.get(facts.epoch, 0.0) + loss
        return StepSample(**asdict(facts), **asdict(times), loss_sum=loss if math.isfinite(loss) else None)


Kind = Literal["oom", "host_oom", "victim", "error", "usage", "terminated"]

TRACEBACK_CHARS = 8000


class Terminated(BaseException):
    """SIGTERM: the launcher stops this rank because another one failed, or the controller ends the group."""


def classify(error: BaseException) -> Kind:
    """Say what happened. ``victim``: this rank only noticed that a peer was gone, which only messages tell."""
    sign = failure_sign(str(error))
    if isinstance(error, Terminated):
        return "terminated"
    if isinstance(error, torch.OutOfMemoryError) or sign == "oom":
        return "oom"
    if isinstance(error, MemoryError) or sign == "host_oom":
        return "host_oom"
    if isinstance(error, StepscopeError):
        return "usage"
    store_errors = (torch.distributed.DistNetworkError, torch.distributed.DistStoreError)
    return "victim" if isinstance(error, store_errors) or sign == "victim" else "error"


def describe(error: BaseException, pulse: Pulse, kind: Kind | None = None) -> RankError:
    """Return an exception as the record that a rank leaves."""
    lines = traceback.format_exception(error)
    return RankError(
        rank=pulse.rank,
        host=pulse.host,
        pid=os.getpid(),
        cell_id=pulse.cell_id,
        phase=pulse.phase,
        step=pulse.step,
        kind=kind or classify(error),
        exception=f"{type(error).__name__}: {error.line if isinstance(error, StepscopeError) else error}",
        traceback="".join(lines)[-TRACEBACK_CHARS:],
        fix=error.fix if isinstance(error, StepscopeError) else None,
        time_ns=time.time_ns(),
    )
