"""What annotations and operators of the host mark: training steps, loading of data, calls of collectives."""

from __future__ import annotations

import re
from operator import methodcaller

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import dataclass
from stepscope.traces.events import NONE, Category, Events

Ints = NDArray[np.int64]

COMM_LAUNCHES = (
    "c10d::", "_c10d_functional::", "c10d_functional::", "gloo:", "record_param_comms", "nccl:", "mpi:", "ucc:",
)  # fmt: skip
"""Operators that call a collective or wait for one. On a CPU trace they, and whatever they are nested in, compute nothing
while they run."""


DATA_MARKS = (
    "stepscope.data", "enumerate(DataLoader)", "enumerate(DataPipe)", "DataLoader", "## data",
    "[pl][profile][_TrainingEpochLoop].train_dataloader_next", "[pl][profile]get_train_batch",
)  # fmt: skip
"""How the names of annotations and operators begin inside which data is loaded: torch's, Lightning's, stepscope's."""

_STEP = re.compile(r"ProfilerStep#(\d+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """The step annotations of one rank in order of time."""

    numbers: Ints
    starts: Ints
    ends: Ints

    def __len__(self) -> int:
        return len(self.numbers)


def step_marks(events: Events) -> Marks:
    """Every ``ProfilerStep#N`` annotation of the host."""
    numbers = np.full(len(events.names), NONE, dtype=np.int64)
    for code, name in enumerate(events.names):
        if name.startswith("ProfilerStep") and (found := _STEP.match(name)):
            numbers[code] = int(found[1])
    marks = np.flatnonzero((numbers[events.name] != NONE) & (events.category == Category.USER_ANNOTATION))
    marks = marks[np.argsort(events.ts_ns[marks], kind="stable")]
    return Marks(numbers=numbers[events.name[marks]], starts=events.ts_ns[marks], ends=events.end_ns[marks])


def comm_calls(events: Events) -> Ints:
    """Operators of the host that call a collective or wait for one, in order of their start."""
    calls = events.named(lambda n: n.startswith(COMM_LAUNCHES) and not n.startswith("gloo:"))
    found = np.flatnonzero((events.category == Category.CPU_OP) & calls)
    return found[np.argsort(events.ts_ns[found], kind="stable")]


def loading_marks(events: Events) -> NDArray[np.bool_]:
    """The annotations and operators that mark data loading, shape (len(events),)."""
    host = np.isin(events.category, (Category.USER_ANNOTATION, Category.CPU_OP))
    return host & events.named(methodcaller("startswith", DATA_MARKS))
