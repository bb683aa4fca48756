"""The critical path within a rank: what waited for what, by hand-built truths."""

from __future__ import annotations

import pytest
from tests.hand_events import Row, call, copy, kernel, launch, mark, op, trace

from stepscope.records.trace_path import CriticalPath
from stepscope.traces.critical_path import critical_path, legs
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


def test_a_host_that_is_always_late_is_the_path() -> None:
    found = path_of(trace(
        op("aten::slow", 0, 100), launch(90, 95, 1), op("aten::slow", 110, 200), launch(190, 195, 2),
        kernel("a", 97, 105, 1), kernel("b", 198, 205, 2),
    ))  # fmt: skip
    # [0, 190) on the host: 100 + 80 in operators less the first launch call, and 10 between them.
    assert nonzero(found) == {
        "host_operator": 175, "host_runtime": 5, "host_other": 10, "launch_latency": 8, "compute": 7,
    }  # fmt: skip


def test_a_host_that_waits_for_the_device_hands_the_path_to_it() -> None:
    found = path_of(trace(
        op("aten::mm", 0, 10), launch(2, 6, 1), kernel("long", 8, 100, 1),
        call("cudaStreamSynchronize", 20, 105), op("aten::add", 110, 130), launch(120, 124, 2), kernel("b", 126, 130, 2),
    ))  # fmt: skip
    assert nonzero(found) == {
        "host_operator": 2 + 10, "launch_latency": 6 + 6, "compute": 92 + 4, "host_runtime": 5, "host_other": 5,
    }  # fmt: skip


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


def reduced(*, waits: str, step: int = 0) -> list[Row]:
    """A step of DDP: the backward kernel, its reduction on stream 20 out of autograd's thread, and the optimizer's kernel,
    which the main thread launches and which begins when the reduction has ended; ``waits``: the thread that made the
    compute stream wait for it."""
    host, at, number = 30 * step, 400 * step, 10 * step
    return [
        launch(host, host + 2, number + 1, thread="engine"), kernel("backward", at + 10, at + 100, number + 1),
        call("cudaStreamWaitEvent", host + 3, host + 4, thread="engine"),
        launch(host + 5, host + 7, number + 2, thread="engine"),
        kernel("ncclDevKernel_AllReduce", at + 101, at + 300, number + 2, stream=20),
        call("cudaStreamWaitEvent", host + 10, host + 11, thread=waits),
        launch(host + 20, host + 22, number + 3), kernel("adam", at + 301, at + 400, number + 3),
    ]  # fmt: skip


@pytest.mark.parametrize("waits", ["main", "engine"])
def test_a_wait_holds_its_stream_back_whichever_thread_made_it(waits: str) -> None:
    rows = [row for step in range(2) for row in reduced(waits=waits, step=step)]
    found = path_of(trace(*rows))
    # Autograd's thread launches nothing after its last wait.
    assert found.inferred == 4
    assert nonzero(found) == {
        "launch_latency": 10, "compute": 2 * (90 + 99), "communication": 2 * 199, "device_gap": 2 * 2 + 10,
    }  # fmt: skip


def copied(*wait: Row) -> RankTrace:
    """The main thread launches kernels; while the first runs another thread launches copies on stream 20, of which one ends
    between the kernels; between the launches a thread made a stream ``wait``."""
    return trace(
        launch(0, 2, 1), kernel("a", 10, 100, 1),
        launch(3, 5, 2, thread="loader"), copy("Memcpy HtoD", 50, 101, 2, stream=20),
        *wait, launch(20, 22, 3), kernel("b", 102, 200, 3),
        launch(30, 32, 4, thread="loader"), copy("Memcpy HtoD", 110, 120, 4, stream=20),
    )  # fmt: skip


def test_a_wait_of_another_thread_for_its_own_stream_holds_nobody_else_back() -> None:
    found = path_of(copied(call("cudaStreamWaitEvent", 10, 11, thread="loader")))
    assert (found.inferred, "memory" in nonzero(found)) == (0, False)
    # The main thread's own wait does.
    assert path_of(copied(call("cudaStreamWaitEvent", 10, 11))).inferred == 1


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


def test_nothing_waits_for_what_was_launched_after_the_wait() -> None:
    found = path_of(trace(
        launch(0, 1, 1), call("cudaStreamWaitEvent", 2, 3), launch(4, 5, 2), launch(6, 7, 3),
        kernel("a", 10, 100, 1), kernel("ncclDevKernel_AllReduce", 20, 101, 2, stream=9), kernel("b", 102, 150, 3),
    ))  # fmt: skip
    assert (found.inferred, "communication" in nonzero(found)) == (0, False)


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


def test_gloo_work_follows_the_call_that_queued_it_and_the_main_thread_follows_it() -> None:
    found = path_of(trace(
        op("aten::mm", 0, 50), op("c10d::allreduce_", 50, 60), mark("gloo:all_reduce", 55, 200, thread="worker"),
        op("aten::add", 205, 230),
    ))  # fmt: skip
    assert nonzero(found) == {"host_operator": 50 + 5 + 25, "communication": 145, "host_other": 5}
    assert found.source == "cpu_spans"


def test_work_launched_before_the_trace_is_not_followed_further() -> None:
    found = path_of(trace(kernel("a", 10, 20), kernel("b", 20, 30), op("aten::mm", 0, 3)))
    assert nonzero(found) == {"compute": 20, "device_gap": 10}
    assert "before recorded work" in names(found)


def test_what_the_driver_moves_by_itself_does_not_end_the_path() -> None:
    moved = copy("Unified memory DtoH", 100, 120, stream=99)
    found = path_of(trace(launch(0, 4, 1), kernel("a", 10, 50, 1), moved))
    assert (found.end_ns, nonzero(found)) == (50, {"launch_latency": 10, "compute": 40})
    assert path_of(trace(moved, op("aten::mm", 0, 5))).end_ns == 120


def test_legs_end_at_the_collective_the_work_waited_for() -> None:
    made = trace(
        launch(0, 1, 1), launch(1, 2, 2), launch(2, 3, 3), launch(3, 4, 4),
        kernel("a", 10, 50, 1), kernel("ncclDevKernel_AllReduce", 50, 80, 2), kernel("b", 80, 95, 3),
        kernel("ncclDevKernel_AllReduce", 100, 120, 4),
    )  # fmt: skip
    found = legs(RankView(made))
    first, second = found.legs
    assert (first.back_to, first.parts.compute_ns, first.parts.launch_latency_ns) == (None, 40, 10)
    assert (second.back_to, second.parts.compute_ns, second.parts.device_gap_ns) == (0, 15, 5)
    assert (found.last.back_to, found.last.parts.total_ns) == (1, 0)
    assert found.durations_ns == (30, 20)
