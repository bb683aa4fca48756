"""When warm-up is over and when to stop: rank 0 decides at fixed step counts, everybody follows.

Fixed numbers are obeyed exactly. Otherwise warm-up ends where the step times say so, and measuring ends when the 95%
interval of the median is tight enough or the budget is out.

Decisions and small data travel through the rendezvous store, not by collectives: what a strategy sends is all that
travels on the process group, and the flight recorder and the traces show nothing else. Every call is outside the
timed region.
"""

from __future__ import annotations

import time
from datetime import timedelta
from itertools import takewhile
from typing import Any, Literal

import msgspec
import numpy as np
from torch._C._distributed_c10d import PrefixStore, Store

from stepscope.rank.recorder import Recorder
from stepscope.records.cell import CellSpec, MeasureSettings
from stepscope.stats.warmup import checkpoints, precise_enough, warmup_end


class Control:
    """The shared notebook of one worker group. Every rank makes the same calls in the same order."""

    def __init__(self, store: Store, *, rank: int, world_size: int, timeout_s: float) -> None:
        self.rank = rank
        self.world_size = world_size
        self._store = PrefixStore("stepscope.control", store)
        self._timeout = timedelta(seconds=timeout_s)
        self._count = 0

    def decide(self, value: Any) -> Any:
        """Return rank 0's ``value`` on every rank."""
        key = self._next("decide")
        if self.rank == 0:
            self._store.set(key, msgspec.json.encode(value).decode())
            return value
        self._store.wait([key], self._timeout)
        return msgspec.json.decode(self._store.get(key))

    def gather(self, value: Any) -> list[Any] | None:
        """Return every rank's ``value`` in rank order, on rank 0; None elsewhere. The others do not wait."""
        key = self._next("gather")
        if self.rank != 0:
            self._store.set(f"{key}/{self.rank}", msgspec.json.encode(value).decode())
            return None
        others = [f"{key}/{rank}" for rank in range(1, self.world_size)]
        if others:
            self._store.wait(others, self._timeout)
        values = [value, *(msgspec.json.decode(self._store.get(k)) for k in others)]
        for k in others:
            self._store.delete_key(k)
        return values

    def all_gather(self, value: Any) -> list[Any]:
        """Return every rank's ``value`` in rank order, on every rank."""
        values: list[Any] = self.decide(self.gather(value))
        return values

    def barrier(self) -> None:
        self.all_gather(None)

    def farewell(self) -> None:
        """Hold a barrier that rank 0 leaves last: where it holds the store, the others must have read everything."""
        self.barrier()
        key = self._next("farewell")
        if self.rank != 0:
            self._store.set(f"{key}/{self.rank}", "")
        elif self.world_size > 1:
            self._store.wait([f"{key}/{rank}" for rank in range(1, self.world_size)], self._timeout)

    def _next(self, kind: str) -> str:
        self._count += 1
        return f"{self._count}/{kind}"


class SlowestRanks:
    """Rank 0's memory of the steps or calls of a round: what the slowest rank took for each."""

    def __init__(self, ci_fraction: float) -> None:
        self.times_ns: list[int] = []
        self._ci_fraction = ci_fraction
        self._was_tight = False

    def add(self, per_rank: list[list[int]]) -> bool:
        """Add further times of each rank; return whether the interval of the median was tight at this look and the one
        before.

        One tight look comes by luck too often on times that depend on each other.
        """
        self.times_ns.extend(np.max(np.asarray(per_rank, dtype=np.int64), axis=0).tolist())
        before, self._was_tight = self._was_tight, precise_enough(self.times_ns, ci_fraction=self._ci_fraction)
        return before and self._was_tight


WARMUP_CHECKS = (3, 5, 7, 10, 15, 22, 33, 49, 60)
WARMUP_CHECK_EVERY = 30  # after the last of them
WARMUP_SHARE_OF_BUDGET = 0.25
WARMUP_SHARE_OF_EPOCHS = 0.2
MIN_TIMED_STEPS = 5
_HORIZON = 10**7
WRITE_EVERY_NS = 500_000_000
MOST_STEPS_BETWEEN_WRITES = 256
WRITE_EVERY_WITHOUT_WARMUP = 8

StopReason = Literal["fixed number of steps", "all epochs", "interval tight enough", "budget used up"]


class Pace:
    """State of one round: ``warming`` until warm-up is over, ``stop_reason`` once the round is. Steps only count if full."""

    def __init__(
        self,
        cell: CellSpec,
        measure: MeasureSettings,
        control: Control,
        recorder: Recorder,
        *,
        min_warmup: int,
        epoch_steps: int | None,
    ) -> None:
        """Begin a round. epoch_steps: optimizer steps of all epochs together, None when the cell counts steps."""
        self._cell = cell
        self._measure = measure
        self._control = control
        self._recorder = recorder
        self._min_warmup = min_warmup
        self._epoch_steps = epoch_steps
        self._started = time.monotonic_ns()
        self._steps = 0
        self._asked_at = 0
        self._most_steps: int | None = None
        self._slowest = SlowestRanks(measure.ci_fraction)
        self.warmup_steps = 0
        self.timed_steps = 0
        self._write_every = 1
        self.warming = measure.warmup_steps != 0
        self.stop_reason: StopReason | None = None
        self._checkpoints = frozenset(takewhile(lambda count: count < _HORIZON, checkpoints()))
        if not self.warming:
            self._write_every = WRITE_EVERY_WITHOUT_WARMUP

    def after_step(self, *, full: bool) -> None:
        """Count one finished step; ``full`` is False for a tail window, which is never a sample of the step time."""
        self._steps += 1
        if self.warming:
            self.warmup_steps += 1
            self.warming = not self._warm()
            if not self.warming:
                self._agree_on_writing()
        else:
            self.timed_steps += full
            if full and self._epoch_steps is None:
                self.stop_reason = self._stop()
        if self._steps % self._write_every == 0:
            self._recorder.write_finished()

    def _warm(self) -> bool:
        """Whether the warm-up has had its steps."""
        wanted = self._measure.warmup_steps
        if wanted is not None:
            return self.warmup_steps >= wanted
        late = self.warmup_steps > WARMUP_CHECKS[-1] and self.warmup_steps % WARMUP_CHECK_EVERY == 0
        if self.warmup_steps not in WARMUP_CHECKS and not late:
            return False
        self._recorder.flush()
        settled: bool = self._control.decide(self._settled() if self._control.rank == 0 else None)
        return settled

    def _agree_on_writing(self) -> None:
        """Write about twice a second, on all ranks after the same steps."""
        self._recorder.flush()
        recent = self._recorder.warmup_step_ns[-10:]
        wanted = WRITE_EVERY_NS // max(1, int(np.median(recent))) if recent else 1
        self._write_every = self._control.decide(max(1, min(wanted, MOST_STEPS_BETWEEN_WRITES)))

    def _settled(self) -> bool:
        """Whether the steps are steady, or warm-up has had its share of the budget."""
        if self.warmup_steps < self._min_warmup:
            return False
        if self.warmup_steps >= WARMUP_CHECKS[-1]:
            return True
        if self._elapsed() > WARMUP_SHARE_OF_BUDGET * self._measure.budget_ns:
            return True
        if self._epoch_steps is not None and self.warmup_steps >= WARMUP_SHARE_OF_EPOCHS * self._epoch_steps:
            return True
        return warmup_end(self._recorder.warmup_step_ns) is not None

    def _stop(self) -> StopReason | None:
        """Say why the timed steps are enough; None: they are not."""
        wanted = self._cell.steps
        if isinstance(wanted, int):
            return "fixed number of steps" if self.timed_steps >= wanted else None
        due = self.timed_steps in self._checkpoints or self.timed_steps == MIN_TIMED_STEPS
        if not due and self.timed_steps != self._most_steps:
            return None
        self._recorder.flush()
        own_ns = self._recorder.timed_step_ns[self._asked_at :]
        self._asked_at += len(own_ns)
        per_rank = self._control.gather(own_ns)
        decision = self._control.decide(None if per_rank is None else self._verdict(per_rank))
        self._most_steps = decision["most_steps"]
        reason: StopReason | None = decision["reason"]
        return reason

    def _verdict(self, per_rank: list[list[int]]) -> dict[str, object]:
        """Return what all ranks do next: stop with a reason, or when to look again."""
        tight = self._slowest.add(per_rank)
        left_ns = self._measure.budget_ns - self._elapsed()
        most = self.timed_steps + max(0, int(left_ns / max(1.0, float(np.median(self._slowest.times_ns)))))
        reason = None
        if tight:
            reason = "interval tight enough"
        elif most <= self.timed_steps:
            reason = "budget used up"
        return {"most_steps": most, "reason": reason}

    def _elapsed(self) -> int:
        return time.monotonic_ns() - self._started
