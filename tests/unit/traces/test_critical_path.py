"""The critical path within a rank: what waited for what, by hand-built truths."""

from __future__ import annotations

from tests.hand_events import Row, call, copy, kernel, launch, mark, op, trace

from stepscope.records.trace_path import CriticalPath
from stepscope.traces.critical_path import critical_path
from stepscope.traces.events import Category, RankTrace, RankView


def path_of(made: RankTrace) -> CriticalPath:
    found = critical_path(RankView(made))
    assert isinstance(found, CriticalPath)
    assert found.parts.total_ns == found.end_ns - found.start_ns
    return found


def nonzero(found: CriticalPath) -> dict[str, int]:
    parts = found.parts
    return {n.removesuffix("_ns"): v for n in parts.__slots__ if (v := getattr(parts, n))}


def names(found: CriticalPath) -> dict[str, int]:
    return {c.name: c.total_ns for c in found.contributors}


def test_a_device_that_is_always_behind_is_the_path() -> None:
    found = path_of(trace(
        op("aten::mm", 0, 10), launch(2, 6, 1), op("aten::mm", 10, 20), launch(12, 16, 2),
        kernel("a", 8, 100, 1), kernel("b", 103, 150, 2),
    ))  # fmt: skip
    assert nonzero(found) == {
        "host_operator": 2, "launch_latency": 6, "compute": 92 + 47, "device_gap": 3,
    }  # fmt: skip
    assert names(found)["a"] == 92


def test_a_synchronisation_that_found_the_device_done_is_host_time() -> None:
    found = path_of(trace(
        launch(2, 6, 1), kernel("short", 8, 10, 1), call("cudaStreamSynchronize", 20, 25),
        launch(120, 124, 2), kernel("b", 126, 130, 2),
    ))  # fmt: skip
    assert "short" not in names(found)
    assert nonzero(found)["host_runtime"] == 4 + 5


def test_a_copy_to_pageable_memory_holds_the_host() -> None:
    found = path_of(trace(
        launch(0, 4, 1), kernel("long", 6, 100, 1),
        call("cudaMemcpyAsync", 10, 120, correlation=2), copy("Memcpy DtoH (Device -> Pageable)", 100, 115, 2),
        launch(130, 134, 3), kernel("b", 136, 140, 3),
    ))  # fmt: skip
    assert nonzero(found)["memory"] == 15
    assert names(found)["long"] == 94


def test_the_launch_and_not_the_stream_bounds_work_that_was_launched_late() -> None:
    found = path_of(trace(launch(0, 4, 1), kernel("a", 5, 10, 1), launch(50, 54, 2), kernel("b", 55, 60, 2)))
    assert "a" not in names(found)
    assert nonzero(found) == {"host_runtime": 4, "host_other": 46, "launch_latency": 5, "compute": 5}


def test_a_wait_between_streams_makes_work_follow_the_other_stream() -> None:
    rows = [
        launch(0, 1, 1), launch(1, 2, 2), call("cudaStreamWaitEvent", 2, 3), launch(3, 4, 3),
        kernel("compute", 5, 100, 1), kernel("ncclDevKernel_AllReduce", 5, 30, 2, stream=9),
        kernel("ncclDevKernel_AllReduce", 101, 140, 3, stream=9),
    ]  # fmt: skip
    found = path_of(trace(*rows))
    assert found.inferred == 1
    assert nonzero(found) == {"launch_latency": 5, "compute": 95, "device_gap": 1, "communication": 39}
    # Without the wait call there is no reason to believe in it.
    alone = path_of(trace(*[r for r in rows if r.name != "cudaStreamWaitEvent"]))
    assert alone.inferred == 0
    assert "compute" not in nonzero(alone)


def copied(*wait: Row) -> RankTrace:
    """The main thread launches kernels; while the first runs another thread launches copies on stream 20, of which one ends
    between the kernels; between the launches a thread made a stream ``wait``."""
    return trace(
        launch(0, 2, 1), kernel("a", 10, 100, 1),
        launch(3, 5, 2, thread="loader"), copy("Memcpy HtoD", 50, 101, 2, stream=20),
        *wait, launch(20, 22, 3), kernel("b", 102, 200, 3),
        launch(30, 32, 4, thread="loader"), copy("Memcpy HtoD", 110, 120, 4, stream=20),
    )  # fmt: skip


def test_the_stream_that_the_profiler_recorded_decides() -> None:
    def recorded(stream: int) -> CriticalPath:
        wait = call("cudaStreamWaitEvent", 10, 11, correlation=90, thread="loader")
        account = Row(
            name="Stream Wait Event", category=Category.SYNC, start=10, end=10, thread="stream 7", stream=stream, device=0,
            correlation=90,
        )  # fmt: skip
        return path_of(copied(wait, account))

    assert recorded(7).inferred == 1
    assert recorded(20).inferred == 0


def test_the_backward_thread_takes_over_from_the_main_thread_and_hands_back() -> None:
    found = path_of(trace(
        mark("ProfilerStep#1", 0, 300), op("aten::forward", 0, 100),
        op("autograd::engine::evaluate_function: X", 110, 200, thread="engine"),
        op("aten::step", 220, 260), launch(250, 254, 1), kernel("k", 256, 300, 1),
    ))  # fmt: skip
    assert names(found)["aten::forward"] == 100
    assert names(found)["autograd::engine::evaluate_function: X"] == 90
    assert found.switches >= 3


def test_a_thread_that_has_nothing_to_do_with_training_stays_off_the_path() -> None:
    found = path_of(trace(
        mark("ProfilerStep#1", 0, 300), op("aten::forward", 0, 100), op("aten::pin_memory", 90, 150, thread="loader"),
        op("aten::step", 160, 200), launch(190, 194, 1), kernel("k", 196, 300, 1),
    ))  # fmt: skip
    assert "aten::pin_memory" not in names(found)


def test_work_launched_before_the_trace_is_not_followed_further() -> None:
    found = path_of(trace(kernel("a", 10, 20), kernel("b", 20, 30), op("aten::mm", 0, 3)))
    assert nonzero(found) == {"compute": 20, "device_gap": 10}
    assert "before recorded work" in names(found)
