"""A step without communication: how long its parts take, and when backward makes each gradient ready."""

from __future__ import annotations

from typing import Literal

from stepscope.core.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyGradient:
    """One parameter's gradient: ready this long after the backward pass began."""

    name: str
    ready_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardProfile:
    """One rank's step with its reductions left out, medians over ``steps`` steps; all ranks ran it at the same time.

    data_wait_ns, forward_ns: of all micro-steps together. earlier_backward_ns: backward passes of the micro-steps before
    the last one, 0 without accumulation. backward_ns: the last micro-step's, the one that may overlap with communication.
    ready: in order of readiness, times since the start of that backward pass, none later than ``backward_ns``.
    unused: parameters that got no gradient. clock: as in a samples file.
    """

    clock: Literal["perf_counter", "cuda_event"]
    steps: int
    micro_batch: int
    data_wait_ns: int
    forward_ns: int
    earlier_backward_ns: int
    backward_ns: int
    optimizer_ns: int
    other_ns: int
    ready: tuple[ReadyGradient, ...]
    unused: tuple[str, ...] = ()

    @property
    def before_ns(self) -> int:
        """From the start of the step to the start of its last backward pass."""
        return self.data_wait_ns + self.forward_ns + self.earlier_backward_ns

    @property
    def after_ns(self) -> int:
        """From the moment all gradients are usable to the end of the step."""
        return self.optimizer_ns + self.other_ns

    @property
    def step_ns(self) -> int:
        """The whole step as it would be if communication took no time."""
        return self.before_ns + self.backward_ns + self.after_ns
