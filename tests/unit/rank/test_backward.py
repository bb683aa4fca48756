"""Medians of a backward profile, and the session that never reduces.

The clock that stands still while a rank waits for a collective.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import pytest
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional

from stepscope.rank import backward
from stepscope.rank.backward import WithoutReductions, summarise
from stepscope.rank.timer import StepTimes

Step = tuple[StepTimes, dict[str, int], int]


def step(forward: int, backward: int, ready: dict[str, int], *, last: int | None = None) -> Step:
    times = StepTimes(
        step_ns=forward + backward + 6, data_wait_ns=1, forward_ns=forward, backward_compute_ns=backward,
        exposed_comm_ns=0, optimizer_ns=3, other_ns=2,
    )  # fmt: skip
    return times, ready, backward if last is None else last


def summary_of(*steps: Step, names: str = "ab", accumulation: int = 1):  # type: ignore[no-untyped-def]
    return summarise(list(steps), names=list(names), clock="perf_counter", micro_batch=4, accumulation=accumulation)


def test_every_part_is_its_own_median() -> None:
    found = summary_of(
        step(10, 100, {"b": 30, "a": 90}), step(12, 110, {"b": 34, "a": 95}), step(50, 300, {"b": 99, "a": 250})
    )
    assert (found.forward_ns, found.backward_ns, found.optimizer_ns, found.other_ns) == (12, 110, 3, 2)
    assert [(r.name, r.ready_ns) for r in found.ready] == [("b", 34), ("a", 95)]
    assert found.steps == 3
    assert found.earlier_backward_ns == 0
    assert found.step_ns == 1 + 12 + 110 + 3 + 2


def test_earlier_micro_steps_are_what_the_last_one_leaves() -> None:
    found = summary_of(step(10, 300, {"a": 90}, last=100), names="a", accumulation=3)
    assert (found.backward_ns, found.earlier_backward_ns) == (100, 200)
    assert found.before_ns == 1 + 10 + 200


def test_without_accumulation_two_readings_of_one_pass_are_no_earlier_one() -> None:
    assert summary_of(step(10, 103, {"a": 90}, last=100), names="a").earlier_backward_ns == 0


def test_a_parameter_without_a_gradient_in_any_step_is_unused() -> None:
    found = summary_of(step(1, 50, {"a": 10}), step(1, 50, {"a": 12, "b": 20}), names="abc")
    assert [r.name for r in found.ready] == ["a", "b"]
    assert found.unused == ("c",)


def test_no_gradient_is_ready_after_the_end_of_backward() -> None:
    found = summary_of(step(1, 100, {"a": 99}), step(1, 40, {}), step(1, 50, {}), names="a")
    assert found.backward_ns == 50
    assert found.ready[0].ready_ns == 50


def test_the_session_below_never_hears_of_a_last_micro_step_or_an_end() -> None:
    heard: list[object] = []

    class Session:
        trainable: nn.Module = nn.Identity()
        loss_factor = 2.0

        def micro_step(self, *, last: bool) -> AbstractContextManager[None]:
            heard.append(last)
            return nullcontext()

        def finish(self) -> None:
            heard.append("finish")

        def zero_grad(self) -> None:
            heard.append("zero_grad")

        def close(self) -> None:
            heard.append("close")

    below = Session()
    quiet = WithoutReductions(below)
    assert quiet.trainable is below.trainable
    assert quiet.loss_factor == 2.0
    with quiet.micro_step(last=False), quiet.micro_step(last=True):
        pass
    quiet.finish()
    quiet.zero_grad()
    quiet.close()
    assert heard == [False, False, "zero_grad"]


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
