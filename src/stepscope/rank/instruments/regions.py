"""Names that a profiler trace shows for the parts of a step."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch.profiler import record_function

STEP = "stepscope.step"
DATA = "stepscope.data"
FORWARD = "stepscope.forward"
LOSS = "stepscope.loss"
BACKWARD = "stepscope.backward"
COMMUNICATION = "stepscope.communication"
OPTIMIZER = "stepscope.optimizer"
PLANTED = "stepscope.planted"


class Regions:
    """``with regions(FORWARD): ...`` marks a profiled step and costs nothing in a timed one."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._nothing = nullcontext()

    def __call__(self, name: str) -> AbstractContextManager[object]:
        return record_function(name) if self._enabled else self._nothing
