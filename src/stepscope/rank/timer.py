"""One clock for one step: every boundary of a step is read on it, so that the phases sum to the step exactly.

CPU: ``perf_counter_ns``. GPU: CUDA events on the compute stream, read later, so that timing never makes the host wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Literal, Protocol

import torch
from torch import nn
from torch.profiler import record_function
from torch.utils.hooks import RemovableHandle

ClockName = Literal["perf_counter", "cuda_event"]

DATA, FORWARD, BACKWARD, READY, COMMUNICATION, WAIT, OPTIMIZER, END = range(8)
"""Kinds of marks, by what one closes. READY is the last local gradient; COMMUNICATION closes when all gradients are usable;
WAIT is exposed, wherever it lies (a pipeline's messages)."""


class Regions:
    """``with regions(Regions.FORWARD): ...`` marks a profiled step and costs nothing in a timed one.

    The names are those that a trace shows for the parts of a step.
    """

    STEP = "stepscope.step"
    DATA = "stepscope.data"
    FORWARD = "stepscope.forward"
    LOSS = "stepscope.loss"
    BACKWARD = "stepscope.backward"
    COMMUNICATION = "stepscope.communication"
    OPTIMIZER = "stepscope.optimizer"
    PLANTED = "stepscope.planted"

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._nothing = nullcontext()

    def __call__(self, name: str) -> AbstractContextManager[object]:
        return record_function(name) if self._enabled else self._nothing


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Durations of one step in ns; the six phases sum to ``step_ns``."""

    step_ns: int
    data_wait_ns: int
    forward_ns: int
    backward_compute_ns: int
    exposed_comm_ns: int
    optimizer_ns: int
    other_ns: int


def split_step(marks: Sequence[tuple[int, int]], start: int, ready: int | None) -> StepTimes:
    """Return the phases of a step from its marks.

    marks: (what it closes, time) in order, the last one END; several rounds of DATA, FORWARD, BACKWARD when
    accumulating. ready: when the last local gradient was ready in the last micro-step, None without communication.
    From ``ready`` to COMMUNICATION is exposed communication, whether the strategy waits inside backward (DDP) or after.
    """
    spent = dict.fromkeys((DATA, FORWARD, BACKWARD, COMMUNICATION, WAIT, OPTIMIZER, END), 0)
    previous, last_forward, gathered = start, start, start
    for what, time in marks:
        spent[what] += time - previous
        previous = time
        if what == FORWARD:
            last_forward = time
        elif what == COMMUNICATION:
            gathered = time
    step = previous - start
    if ready is None:
        backward, exposed = spent[BACKWARD], spent[WAIT]
    else:
        ready = min(max(ready, last_forward), gathered)
        exposed = gathered - ready
        backward = spent[BACKWARD] + spent[COMMUNICATION] - exposed
    named = spent[DATA] + spent[FORWARD] + backward + exposed + spent[OPTIMIZER]
    return StepTimes(step, spent[DATA], spent[FORWARD], backward, exposed, spent[OPTIMIZER], step - named)


def cuda_event() -> torch.cuda.Event:
    """Return an event that keeps its time."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def between_ns(start: torch.cuda.Event, end: torch.cuda.Event) -> int:
    """Return the time of the device between two events that have passed."""
    return round(float(start.elapsed_time(end)) * 1e6)


class PendingStep(Protocol):
    """A step whose marks were taken; on GPU its times are known once its last event has passed."""

    def done(self) -> bool: ...

    def times(self) -> StepTimes: ...


class StepTimer(Protocol):
    clock: ClockName

    def start(self) -> None: ...

    def mark(self, what: int) -> None: ...

    def ready(self) -> None:
        """Note the gradient of one more parameter; the last call of a step counts."""
        ...

    def stop(self) -> PendingStep: ...


@dataclass(frozen=True, slots=True)
class _Known:
    result: StepTimes

    def done(self) -> bool:
        return True

    def times(self) -> StepTimes:
        return self.result


class CpuStepTimer:
    clock: ClockName = "perf_counter"

    def __init__(self, now: Callable[[], int] = perf_counter_ns) -> None:
        self._now = now
        self._start = 0
        self._ready: int | None = None
        self._marks: list[tuple[int, int]] = []

    def start(self) -> None:
        self._marks = []
        self._ready = None
        self._start = self._now()

    def mark(self, what: int) -> None:
        self._marks.append((what, self._now()))

    def ready(self) -> None:
        self._ready = self._now()

    def stop(self) -> PendingStep:
        self.mark(END)
        return _Known(split_step(self._marks, self._start, self._ready))


class _CudaPending:
    def __init__(
        self, start: torch.cuda.Event, marks: list[tuple[int, torch.cuda.Event]], ready: torch.cuda.Event | None
    ) -> None:
        self._start, self._marks, self._ready = start, marks, ready

    def done(self) -> bool:
        return bool(self._marks[-1][1].query())  # type: ignore[no-untyped-call]

    def times(self) -> StepTimes:
        self._marks[-1][1].synchronize()
        marks = [(what, self._since_start(event)) for what, event in self._marks]
        return split_step(marks, 0, None if self._ready is None else self._since_start(self._ready))

    def _since_start(self, event: torch.cuda.Event) -> int:
        return between_ns(self._start, event)


class CudaStepTimer:
    clock: ClockName = "cuda_event"

    def __init__(self) -> None:
        self._start = cuda_event()
        self._marks: list[tuple[int, torch.cuda.Event]] = []
        self._ready_event = cuda_event()
        self._has_ready = False

    def start(self) -> None:
        self._marks = []
        self._has_ready = False
        self._ready_event = cuda_event()
        self._start = cuda_event()
        self._start.record()

    def mark(self, what: int) -> None:
        event = cuda_event()
        event.record()
        self._marks.append((what, event))

    def ready(self) -> None:
        self._has_ready = True
        self._ready_event.record()

    def stop(self) -> PendingStep:
        self.mark(END)
        return _CudaPending(self._start, self._marks, self._ready_event if self._has_ready else None)


class NoTimer:
    """Takes no time and gives none: warm-up outside any record, and the benchmark of the timer's own cost."""

    clock: ClockName = "perf_counter"

    def start(self) -> None: ...

    def mark(self, what: int) -> None: ...

    def ready(self) -> None: ...

    def stop(self) -> PendingStep:
        return _Known(StepTimes(0, 0, 0, 0, 0, 0, 0))


def step_timer(device: torch.device, *, now: Callable[[], int] = perf_counter_ns) -> StepTimer:
    """Return the timer of a device. now: the clock of CPU steps."""
    return CudaStepTimer() if device.type == "cuda" else CpuStepTimer(now)


class GradientReadiness:
    """Tells a timer when local gradients are ready, from post-accumulate hooks on every trainable parameter.

    Open it before the strategy adds its own hooks: hooks run in order of registration, and ready means
    before anything is launched. ``armed`` is set for the last micro-step only.
    """

    def __init__(self, module: nn.Module, timer: StepTimer) -> None:
        self.armed = False
        self._timer = timer
        self._handles: list[RemovableHandle] = [
            p.register_post_accumulate_grad_hook(self._fire)  # type: ignore[no-untyped-call]
            for p in module.parameters()
            if p.requires_grad
        ]

    def _fire(self, parameter: torch.Tensor) -> None:  # noqa: ARG002 - the hook's signature
        if self.armed:
            self._timer.ready()

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
