"""The clock that stands still while a rank waits for a collective."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

from stepscope.rank import backward


class Clock:
    def __init__(self) -> None:
        self.ns = 0

    def takes(self, ns: int) -> object:
        def call(*_: object) -> str:
            self.ns += ns
            return "done"

        return call


def test_waits_are_left_out_and_torch_is_as_before_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(backward, "perf_counter_ns", lambda: clock.ns)
    monkeypatch.setattr(dist.Work, "wait", clock.takes(1000))
    monkeypatch.setattr(functional, "wait_tensor", clock.takes(300))
    before = dist.Work.wait, functional.wait_tensor
    with backward.without_waits() as now:
        started = now()
        clock.ns += 7
        assert dist.Work.wait(None) == functional.wait_tensor(None) == "done"  # type: ignore[arg-type]
        clock.ns += 5
        assert (now() - started, clock.ns) == (12, 1312)
    assert (dist.Work.wait, functional.wait_tensor) == before
