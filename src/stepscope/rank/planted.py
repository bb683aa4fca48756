"""Faults of a cell (records/injection.py), as its ranks lose the time."""

from __future__ import annotations

import random
import time
from collections import deque
from statistics import median

import torch

from stepscope.rank.instruments.timer import PendingStep
from stepscope.records.cell import CellSpec
from stepscope.records.injection import injection_of

REMEMBERED = 9
"""Steps whose median is the rank's own computation: one disturbed step must not change what is planted."""


class PlantedFaults:
    """Sleeps where a real fault would take the time: before a step's first batch, and before its computation.

    A sleep takes no core from the other ranks, as a slower processor would not. Shares are of the rank's own computation
    (forward, backward, optimizer; without waiting for others), the median of its last steps: a cell's first step loses none.
    """

    def __init__(self, cell: CellSpec, *, rank: int, device: torch.device) -> None:
        found = injection_of(cell.inject)
        self._slow = next((s.by for s in found.slow if s.rank == rank), None)
        self._jitter, self._loader = found.jitter, found.loader
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
        """The loader's part of a step."""
        self._learn()
        if self._loader is not None:
            self._lose("loader", self._loader.of(self._own_ns))

    def before_compute(self) -> None:
        """The part of a step's computation."""
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
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # work queued before would hide the sleep
        began = time.perf_counter_ns()
        time.sleep(max(0.0, ns) / 1e9)
        lost = time.perf_counter_ns() - began
        self._lost.setdefault(kind, []).append(lost)
        return lost
