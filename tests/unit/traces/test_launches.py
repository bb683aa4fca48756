"""Launch delays, late launches and the length of the queue."""

from __future__ import annotations

import numpy as np
from tests.hand_events import kernel, launch, op, trace

from stepscope.records.trace_work import LaunchStatistics
from stepscope.traces.activity import activity_of
from stepscope.traces.events import RankTrace
from stepscope.traces.idle import launch_statistics, queue_length
from stepscope.traces.nesting import launches_of


def statistics(made: RankTrace) -> LaunchStatistics | None:
    return launch_statistics(made, launches_of(made.events, activity_of(made.events).indices))


def test_delay_runs_from_the_start_of_the_call_to_the_start_of_the_work() -> None:
    found = statistics(trace(launch(0, 4, 1), launch(10, 14, 2), kernel("a", 6, 9, 1), kernel("b", 30, 31, 2)))
    assert found is not None
    assert found.delay is not None
    assert (found.delay.min_ns, found.delay.max_ns, found.delay.mean_ns) == (6, 20, 13.0)
    assert found.call is not None
    assert found.call.median_ns == 4


def test_work_shorter_than_its_launch_is_counted_with_what_both_take() -> None:
    found = statistics(trace(launch(0, 4, 1), launch(10, 14, 2), kernel("a", 6, 9, 1), kernel("b", 30, 39, 2)))
    assert found is not None
    assert (found.short_count, found.short_ns, found.short_call_ns) == (1, 3, 4)


def test_a_launch_is_late_when_its_stream_had_nothing_left_to_do() -> None:
    found = statistics(trace(
        launch(0, 1, 1), launch(2, 3, 2), launch(50, 51, 3),
        kernel("a", 5, 20, 1), kernel("b", 20, 30, 2), kernel("c", 55, 60, 3), kernel("other stream", 1, 100, stream=9),
    ))  # fmt: skip
    assert found is not None
    assert (found.late_count, found.late_share) == (1, 0.5)


def test_events_without_a_launch_and_events_before_their_launch_are_counted() -> None:
    found = statistics(trace(launch(10, 12, 1), kernel("a", 8, 20, 1), kernel("b", 30, 40)))
    assert found is not None
    assert (found.launched, found.unlinked, found.early) == (1, 1, 1)


def test_without_any_launch_in_the_file_the_figures_are_unknown_with_the_reason() -> None:
    found = statistics(trace(kernel("a", 8, 20), kernel("b", 30, 40)))
    assert found is not None
    assert (found.delay, found.queue, found.late_share, found.unlinked) == (None, None, None, 2)
    assert found.unavailable is not None


def test_a_cpu_trace_has_no_launches() -> None:
    assert statistics(trace(op("aten::mm", 0, 5))) is None


def test_launches_per_second_are_over_the_time_the_host_launched_in() -> None:
    calls = [launch(10 * i, 10 * i + 10, i + 1) for i in range(5)]
    work = [kernel("a", 100 + i, 101 + i, i + 1) for i in range(5)]
    found = statistics(trace(*calls, *work))
    assert found is not None
    assert found.launches_per_s == 5 / 50e-9


def test_the_queue_holds_what_is_launched_and_not_started() -> None:
    found = queue_length(np.array([0, 10, 20]), np.array([40, 60, 80]), slices=4)
    assert found is not None
    assert found.longest == 3
    assert found.mean == (1 * 10 + 2 * 10 + 3 * 20 + 2 * 20 + 1 * 20) / 80
    assert found.empty_share == 0.0
    assert found.times_ns == (0, 20, 40, 60)
    assert found.longest_by_slice == (2, 3, 2, 1)


def test_the_queue_is_empty_where_work_starts_at_once() -> None:
    found = queue_length(np.array([0, 10]), np.array([0, 30]))
    assert found is not None
    assert (found.longest, found.empty_share) == (1, 10 / 30)


def test_no_work_makes_no_queue() -> None:
    nothing = np.zeros(0, dtype=np.int64)
    assert queue_length(nothing, nothing) is None
    assert queue_length(np.array([5]), np.array([5])) is None
