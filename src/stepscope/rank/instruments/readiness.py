"""When backward makes each gradient ready: one time for every parameter and step, on the step's own clock."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from stepscope.rank.instruments.timer import (
    BACKWARD,
    FORWARD,
    ClockName,
    PendingStep,
    between_ns,
    cuda_event,
    step_timer,
)


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
        self._inner.mark(what)
        if what == FORWARD:
            self._ready.clear()
            self._begin = self._stamp()
        elif what == BACKWARD:
            self._end = self._stamp()

    def ready(self) -> None:
        """Not used: without reductions a step has no exposed communication to tell apart."""

    def stop(self) -> PendingStep:
        return self._inner.stop()

    def offsets(self) -> tuple[dict[str, int], int]:
        """Ready time of each parameter that got a gradient, in order, and the backward pass's duration, ns.

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
