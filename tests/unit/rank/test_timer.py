"""Phases of a step: on one clock, summing to the step exactly."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from stepscope.rank import timer
from stepscope.rank.timer import BACKWARD, COMMUNICATION, DATA, END, FORWARD, OPTIMIZER, CpuStepTimer, split_step

ROUND = (DATA, FORWARD, BACKWARD)
TAIL = (COMMUNICATION, OPTIMIZER, END)


def parts(times: timer.StepTimes) -> int:
    return (
        times.data_wait_ns + times.forward_ns + times.backward_compute_ns + times.exposed_comm_ns
        + times.optimizer_ns + times.other_ns
    )  # fmt: skip


@given(durations=st.lists(st.integers(0, 10**9), min_size=6, max_size=30), ready_at=st.none() | st.floats(0, 1))
def test_the_phases_sum_to_the_step_whatever_the_marks(durations: list[int], ready_at: float | None) -> None:
    rounds = (len(durations) - 3) // 3
    whats = [*(ROUND * rounds), *TAIL]
    time, marks = 1000, []
    for what, duration in zip(whats, durations, strict=False):
        time += duration
        marks.append((what, time))
    ready = None if ready_at is None else 1000 + int(ready_at * (time - 1000))
    times = split_step(marks, 1000, ready)
    assert times.step_ns == time - 1000
    assert parts(times) == times.step_ns
    assert all(getattr(times, name) >= 0 for name in timer.StepTimes.__slots__)


def test_communication_inside_backward_is_exposed_from_the_last_gradient_on() -> None:
    """DDP waits inside backward: nothing is left for after it."""
    marks = [(DATA, 10), (FORWARD, 30), (BACKWARD, 100), (COMMUNICATION, 101), (OPTIMIZER, 111), (END, 111)]
    times = split_step(marks, 0, ready=70)
    assert (times.forward_ns, times.backward_compute_ns, times.exposed_comm_ns) == (20, 40, 31)
    assert (times.data_wait_ns, times.optimizer_ns, times.other_ns) == (10, 10, 0)


def test_without_communication_nothing_is_exposed() -> None:
    marks = [(DATA, 10), (FORWARD, 30), (BACKWARD, 100), (COMMUNICATION, 103), (OPTIMIZER, 111), (END, 112)]
    times = split_step(marks, 0, ready=None)
    assert (times.backward_compute_ns, times.exposed_comm_ns, times.other_ns) == (70, 0, 4)


def test_only_the_last_backward_of_an_accumulated_step_is_split() -> None:
    marks = [(DATA, 0), (FORWARD, 10), (BACKWARD, 20), (DATA, 20), (FORWARD, 30), (BACKWARD, 40),
             (COMMUNICATION, 60), (OPTIMIZER, 61), (END, 61)]  # fmt: skip
    times = split_step(marks, 0, ready=39)
    assert (times.backward_compute_ns, times.exposed_comm_ns, times.forward_ns) == (19, 21, 20)


def test_the_cpu_timer_reads_its_clock_once_per_mark() -> None:
    clock = iter(range(0, 1000, 7))
    reading = CpuStepTimer(now=lambda: next(clock))
    reading.start()
    for what in (*ROUND, COMMUNICATION, OPTIMIZER):
        reading.mark(what)
    times = reading.stop().times()
    assert times.step_ns == 42
    assert all(b - a == 7 for a, b in pairwise(range(0, 43, 7)))
