"""Annotations: host time and the device work launched inside them."""

from __future__ import annotations

from tests.hand_events import device_mark, kernel, launch, mark, op, trace

from stepscope.records.trace_work import AnnotationRow
from stepscope.traces.activity import activity_of
from stepscope.traces.events import RankTrace
from stepscope.traces.modules import annotation_rows
from stepscope.traces.nesting import launches_of


def rows(made: RankTrace) -> dict[str, AnnotationRow]:
    found = annotation_rows(made, launches_of(made.events, activity_of(made.events).indices))
    return {r.name: r for r in found}


def test_work_counts_for_every_annotation_around_its_launch() -> None:
    found = rows(trace(
        mark("step", 0, 100), mark("forward", 10, 50), launch(20, 21, 1), launch(60, 61, 2), launch(200, 201, 3),
        kernel("a", 30, 40, 1), kernel("b", 70, 90, 2), kernel("c", 210, 220, 3),
    ))  # fmt: skip
    assert {n: (r.calls, r.host_ns, r.device_ns, r.device_events) for n, r in found.items()} == {
        "step": (1, 100, 30, 2),
        "forward": (1, 40, 10, 1),
    }


def test_numbered_steps_are_one_row() -> None:
    found = rows(trace(mark("ProfilerStep#3", 0, 10), mark("ProfilerStep#4", 10, 30)))
    assert (found["ProfilerStep#"].calls, found["ProfilerStep#"].host_ns) == (2, 30)


def test_an_annotation_inside_one_of_the_same_name_counts_once() -> None:
    found = rows(trace(mark("x", 0, 50), mark("x", 10, 20), launch(12, 13, 1), kernel("a", 15, 18, 1)))
    assert (found["x"].calls, found["x"].host_ns, found["x"].device_ns, found["x"].device_events) == (
        2,
        50,
        3,
        1,
    )


def test_what_the_autograd_engine_launches_counts_for_the_thread_that_waits_for_it() -> None:
    found = rows(trace(
        mark("## backward ##", 0, 100), op("autograd::engine::evaluate_function: MmBackward0", 10, 60, thread="engine"),
        mark("nccl:all_reduce", 40, 50, thread="engine"),
        launch(20, 21, 1, thread="engine"), launch(42, 43, 2, thread="engine"), launch(70, 71, 3, thread="loader"),
        kernel("a", 30, 40, 1), kernel("ncclDevKernel_AllReduce", 45, 60, 2, stream=9), kernel("c", 80, 85, 3),
    ))  # fmt: skip
    assert {n: r.device_ns for n, r in found.items()} == {"## backward ##": 25, "nccl:all_reduce": 15}


def test_streams_at_one_time_count_once_in_the_busy_time() -> None:
    found = rows(trace(
        mark("x", 0, 50), launch(1, 2, 1), launch(2, 3, 2), kernel("a", 5, 15, 1), kernel("b", 10, 20, 2, stream=9),
    ))  # fmt: skip
    assert (found["x"].device_ns, found["x"].device_busy_ns) == (20, 15)


def test_the_profilers_own_device_span_is_shown_where_it_wrote_one() -> None:
    found = rows(trace(mark("x", 0, 50), mark("y", 60, 70), device_mark("x", 10, 90)))
    assert (found["x"].device_span_ns, found["y"].device_span_ns) == (80, None)


def test_a_trace_without_annotations_has_no_rows() -> None:
    assert rows(trace(op("aten::mm", 0, 5))) == {}
