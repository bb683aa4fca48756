"""A clock that stands still while this rank calls a collective or waits for one: what is left is its own computation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Any

import torch.distributed as dist
from torch.distributed import _functional_collectives as functional


@contextmanager
def without_waits() -> Iterator[Callable[[], int]]:
    """Reads ns. On CPU ranks, where the host waits: for torch's collectives from Python, functional ones included."""
    waited = 0

    def timed(wait: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
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
