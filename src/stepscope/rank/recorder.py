"""Samples of one rank, written while the cell runs, so that a killed rank leaves what it measured."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import torch
from torch import Tensor

from stepscope.instrument.timer import PendingStep
from stepscope.records import codec
from stepscope.records.samples import SamplesHeader, StepSample
from stepscope.store.writer import make_dir, write_error

FLUSH_EVERY_S = 0.5
FLUSH_AT_LEAST_EVERY = 64


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """Appends steps to a samples file. ``add`` is cheap; encoding and writing happen between steps, in batches."""

    def __init__(self, path: Path, header: SamplesHeader) -> None:
        self._path = path
        make_dir(path.parent)
        self._new = not path.exists()
        try:
            self._file: BinaryIO = path.open("ab")
        except OSError as error:
            raise write_error(path, error) from error
        if self._new:
            self._write(codec.encode_line(header, header=True))
        self._pending: list[tuple[StepFacts, PendingStep, Tensor]] = []
        self._last_flush = time.monotonic()
        self.warmup_step_ns: list[int] = []
        self.timed_step_ns: list[int] = []
        self.epoch_step_ns: dict[int, int] = {}
        self.epoch_loss: dict[int, float] = {}

    def add(self, facts: StepFacts, pending: PendingStep, loss_sum: Tensor) -> None:
        """One finished step; ``loss_sum`` is a detached scalar on the device, read later."""
        self._pending.append((facts, pending, loss_sum))
        full = len(self._pending) >= FLUSH_AT_LEAST_EVERY
        if (full or time.monotonic() - self._last_flush >= FLUSH_EVERY_S) and pending.done():
            self.flush()

    def flush(self) -> None:
        """Everything added so far is on disk, and in ``warmup_step_ns`` and ``timed_step_ns``. May wait for the device."""
        if self._pending:
            losses = torch.stack([loss.float() for _, _, loss in self._pending]).tolist()
            lines = [
                codec.encode_line(self._sample(facts, pending, loss))
                for (facts, pending, _), loss in zip(self._pending, losses, strict=True)
            ]
            self._pending.clear()
            self._write(b"".join(lines))
        self._last_flush = time.monotonic()

    def close(self) -> None:
        try:
            self.flush()
        finally:
            self._file.close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _sample(self, facts: StepFacts, pending: PendingStep, loss: float) -> StepSample:
        times = pending.times()
        if facts.full:
            (self.warmup_step_ns if facts.warmup else self.timed_step_ns).append(times.step_ns)
        self.epoch_step_ns[facts.epoch] = self.epoch_step_ns.get(facts.epoch, 0) + times.step_ns
        self.epoch_loss[facts.epoch] = self.epoch_loss.get(facts.epoch, 0.0) + loss
        return StepSample(
            round=facts.round,
            step=facts.step,
            epoch=facts.epoch,
            warmup=facts.warmup,
            full=facts.full,
            samples=facts.samples,
            global_samples=facts.global_samples,
            loss_sum=loss if math.isfinite(loss) else None,
            step_ns=times.step_ns,
            data_wait_ns=times.data_wait_ns,
            forward_ns=times.forward_ns,
            backward_compute_ns=times.backward_compute_ns,
            exposed_comm_ns=times.exposed_comm_ns,
            optimizer_ns=times.optimizer_ns,
            other_ns=times.other_ns,
            host_data_ns=facts.host_data_ns,
        )

    def _write(self, data: bytes) -> None:
        try:
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            raise write_error(self._path, error) from error
