"""What the host does once is start-up: a cause of its own, no late launch, and in no typical step."""

from __future__ import annotations

import pytest
from tests.hand_events import Row, call, kernel, launch, mark, op, trace

from stepscope.traces.job import combine
from stepscope.traces.rank_pass import analyse
from stepscope.traces.sections import Wanted

MS = 1_000_000


def steps(*loads: tuple[int, Row], count: int = 6, marked: bool = True, cold: int = 0) -> list[Row]:
    """Steps of 10 kernels of 1 ms. loads: (step, call from 0) before the step's first launch; cold: length of the first
    launch beyond what others take."""
    rows: list[Row] = []
    at = 0
    for step in range(count):
        begin = at
        for place, given in loads:
            if place == step:
                rows.append(call(given.name, at, at + given.end) if given.thread == "main" else given)
                at += given.end
        for i in range(10):
            number = 100 * step + i + 1
            takes = 5_000 + (cold if step == i == 0 else 0)
            rows += [launch(at, at + takes, number), op("aten::mm", at, at + takes)]
            rows.append(kernel("gemm", at + takes, at + takes + MS, number))
            at += takes + MS
        if marked:
            rows.append(mark(f"ProfilerStep#{step}", begin, at))
    return rows


def idle(rows: list[Row]) -> dict[str, int]:
    return {i.cause: i.idle_ns for i in analyse(trace(*rows), Wanted()).idle}


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize(
    "name",
    ["cuLibraryLoadData", "cuModuleLoadDataEx", "hipModuleLoadData", "cudaGraphInstantiate", "zeModuleCreate"],
)  # fmt: skip
def test_modules_that_are_loaded_are_start_up(name: str, marked: bool) -> None:
    rows = steps((0, call(name, 0, 150 * MS)), (2, call(name, 0, 50 * MS)), marked=marked)
    found = analyse(trace(*rows), Wanted())
    causes = {i.cause: i for i in found.idle}
    expected = 200 * MS if marked else 50 * MS  # without marks the window begins with the first kernel
    assert causes["start_up"].idle_ns == expected
    assert causes["start_up"].call == name
    assert causes["host_late"].idle_ns < MS
    assert found.long_gaps == ()
    if marked:
        assert [s.start_up_ns // MS for s in found.steps] == [150, 0, 50, 0, 0, 0]
        assert max(s.usual_ns for s in found.steps) < 11 * MS
    verdict = combine([found]).verdicts[0].verdict
    assert verdict.kind == ("start-up" if marked else "compute")


def test_what_comes_back_in_most_steps_is_no_start_up() -> None:
    every = [(step, call("cuModuleLoadData", 0, 20 * MS)) for step in range(6)]
    assert "start_up" not in idle(steps(*every))
    assert idle(steps(*every))["host_late"] >= 6 * 20 * MS


def test_a_cold_launch_is_start_up_in_the_first_step_alone() -> None:
    assert idle(steps(cold=300 * MS))["start_up"] >= 300 * MS
    assert "start_up" not in idle(steps(cold=5 * MS))
    later = steps(cold=300 * MS)
    marks = [row for row in later if row.name.startswith("ProfilerStep")]
    moved = [row for row in later if row not in marks]
    before = mark("ProfilerStep#0", -30 * MS, 0)
    earlier = [launch(-20 * MS, -20 * MS + 5_000, 9_999), kernel("gemm", -20 * MS + 5_000, -1, 9_999)]
    shifted = [mark(f"ProfilerStep#{n + 1}", row.start, row.end) for n, row in enumerate(marks)]
    assert "start_up" not in idle([before, *earlier, *shifted, *moved])


@pytest.mark.parametrize("wait", ["cudaStreamSynchronize", "cudaMemcpy", "hipEventSynchronize"])
def test_a_long_wait_is_no_cold_call(wait: str) -> None:
    assert "start_up" not in idle(steps((0, call(wait, 0, 100 * MS))))


def test_compilation_is_start_up() -> None:
    compiled = op("_compile.compile_inner (dynamo_timed)", 0, 400 * MS)
    rows = [compiled, *(row for row in steps((0, call("unknown_call", 0, 400 * MS))) if row.name != "unknown_call")]
    assert idle(rows)["start_up"] >= 399 * MS


def with_operator(name: str, *lengths: int, inside: str = "") -> list[Row]:
    """Steps that begin with an operator of these lengths, in which the device has nothing to do. inside: a call in it."""
    rows: list[Row] = []
    at = 0
    for step, length in enumerate(lengths):
        begin = at
        rows.append(op(name, at, at + length))
        if inside:
            rows.append(call(inside, at + 1_000, at + length - 1_000))
        at += length
        rows += [launch(at, at + 5_000, step + 1), op("aten::mm", at, at + 5_000)]
        rows.append(kernel("gemm", at + 5_000, at + 20 * MS, step + 1))
        at += 20 * MS
        rows.append(mark(f"ProfilerStep#{step}", begin, at))
    return rows


def test_an_operator_that_is_slow_once_is_start_up() -> None:
    assert idle(with_operator("c10d::allreduce_", 800 * MS, MS, MS, MS))["start_up"] == 800 * MS


@pytest.mark.parametrize(
    "rows",
    [
        with_operator("aten::copy_", 800 * MS, 700 * MS, MS, MS),  # again
        with_operator("aten::copy_", MS, 800 * MS, MS, MS),  # not at the start
        with_operator("aten::copy_", 9 * MS, MS // 9, MS // 9),  # short
        with_operator("aten::item", 800 * MS, MS, MS, inside="cudaMemcpyAsync"),  # waits
        with_operator("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 800 * MS, MS, MS),  # data
        with_operator("aten::copy_", 800 * MS),  # nothing to compare with
    ],
)
def test_an_operator_that_comes_again_waits_or_loads_is_no_start_up(rows: list[Row]) -> None:
    assert "start_up" not in idle(rows)


def test_the_cache_of_an_allocator_fills_once() -> None:
    first = [(0, call("cudaMalloc", 0, 4 * MS))] * 5
    assert idle(steps(*first))["start_up"] >= 20 * MS
    every = [(step, call("cudaMalloc", 0, 4 * MS)) for step in range(6)]
    assert "start_up" not in idle(steps(*first, *every))
    assert "start_up" not in idle(steps(*first, count=2))


def unmarked(*lengths_ms: tuple[str, float], kernels: int = 0) -> list[Row]:
    """Calls of these names and lengths, one behind the other, each with work of 100 us where it launches: a name with a
    kernel's behind a slash launches that. kernels: so many short launches of one kernel before them."""
    rows: list[Row] = []
    at = 0
    for number, (name, length) in enumerate([("cudaLaunchKernel/first", 0.005)] * kernels + list(lengths_ms), start=1):
        end = at + round(length * MS)
        named, _, launched = name.partition("/")
        rows.append(call(named, at, end, correlation=number))
        if launched:
            rows.append(kernel(launched, end, end + 100_000, number))
        at = end + 100_000 * bool(launched)
    return rows


def many(name: str, *lengths_ms: float) -> list[tuple[str, float]]:
    return [(name, length) for length in lengths_ms]


SHORT = many("hipLaunchKernel/b", *[0.005] * 10)


@pytest.mark.parametrize(
    ("calls", "expected_ms"),
    [
        # The first launch of each kernel, the longest of them in the middle.
        ([*many("cudaLaunchKernel/a", 300, *[0.01] * 9), *many("cudaLaunchKernel/b", 900, 0.01)], 1200),
        (many("cudaLaunchKernel/b", 0.01, *[0.01] * 9, 900, 0.01), 0),  # a later launch of its kernel
        ([*many("cudaLaunchKernel/a", 300), *many("cudaLaunchKernel/b", 0.01, 200, 0.01)], 0),  # others are long again
        # The first calls of a name, of many.
        ([*many("cudaFree", 6000, 500, *[1] * 13), *SHORT], 6500),
        ([*many("cudaFree", 6000, 500, *[2000] * 13), *SHORT], 0),
        ([*many("cudaMalloc", 60, 0.01, 0.01), *SHORT], 0),  # three calls show nothing
    ],
)
def test_without_marks_first_launches_and_first_calls_of_many_are_cold(
    calls: list[tuple[str, float]], expected_ms: float
) -> None:
    causes = idle([*unmarked(*calls, ("cudaLaunchKernel/end", 0.005), kernels=30)])
    assert causes.get("start_up", 0) == pytest.approx(expected_ms * MS, abs=MS / 2)


@pytest.mark.parametrize(("length_ms", "cold"), [(6.5, True), (0.45, False)])
def test_in_a_short_capture_a_shorter_call_is_cold(length_ms: float, cold: bool) -> None:
    rows = unmarked(*SHORT[:2], ("hipLaunchKernel/c", length_ms), *SHORT)
    assert ("start_up" in idle(rows)) == cold
    later = unmarked(*[each for _ in range(40) for each in (*SHORT, ("hipLaunchKernel/c", length_ms))])
    assert "start_up" not in idle(later)


def test_a_kernel_that_comes_first_in_a_later_step_is_not_cold() -> None:
    rows = steps(cold=0)
    at = max(row.end for row in rows)
    late = [launch(at, at + 200 * MS, 9_000), kernel("other", at + 200 * MS, at + 201 * MS, 9_000)]
    assert "start_up" not in idle([*rows, *late, mark("ProfilerStep#6", at, at + 201 * MS)])
