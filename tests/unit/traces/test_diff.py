"""Diff of two traces or two steps, and a verdict that knows noise."""

from __future__ import annotations

import pytest
from tests.hand_events import Row, kernel, launch, mark, op, trace

from stepscope.core.errors import Unavailable, UsageError
from stepscope.records.nouns import Estimate
from stepscope.records.trace_summary import TraceDiff, WorkProfile
from stepscope.stats.compare import Change
from stepscope.traces import diff as module
from stepscope.traces.diff import OTHERS, diff_profiles, only_steps, step_verdict, work_profile
from stepscope.traces.events import RankTrace, RankView


def profiled(made: RankTrace) -> WorkProfile | Unavailable:
    return work_profile(RankView(made))


def profile(made: RankTrace) -> WorkProfile:
    found = profiled(made)
    assert isinstance(found, WorkProfile)
    return found


def job(gemm_ns: list[int], *, extra: str | None = None) -> RankTrace:
    """One gemm and one relu per step; the device is busy throughout."""
    rows: list[Row] = []
    time = 100
    for i, ns in enumerate(gemm_ns):
        rows += [mark(f"ProfilerStep#{i}", time - 50, time - 10), op("aten::mm", time - 45, time - 30)]
        rows += [launch(time - 40, time - 39, 2 * i + 1), kernel("gemm", time, time + ns, 2 * i + 1)]
        rows += [launch(time - 35, time - 34, 2 * i + 2), kernel(extra or "relu", time + ns, time + ns + 20, 2 * i + 2)]
        time += ns + 20
    return trace(*rows)


def diff(before: WorkProfile, after: WorkProfile, limit: int | None = 30) -> TraceDiff:
    return diff_profiles(before, after, limit=limit)


FAST = profile(job([100, 101, 99, 100, 102, 98]))


def test_a_step_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(UsageError, match="step 9") as error:
        only_steps(FAST, [9])
    assert "0, 1, 2, 3, 4, 5" in str(error.value)


def test_kernels_of_one_side_only_are_new_or_gone() -> None:
    found = diff(profile(job([100] * 4)), profile(job([100] * 4, extra="fused")))
    assert {r.name: r.presence for r in found.kernels} == {"gemm": "both", "relu": "gone", "fused": "new"}


def test_a_name_that_may_be_among_the_others_is_not_called_new(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, "NAMES", 1)
        short = profile(job([100] * 4))
    assert {s.name for s in short.series if s.kind == "kernel"} == {"gemm", OTHERS}
    found = diff(short, profile(job([100] * 4)))
    assert {r.name: r.presence for r in found.kernels}["relu"] == "unlisted"


def test_without_step_marks_the_window_is_one_step() -> None:
    found = profile(trace(launch(0, 1, 1), kernel("a", 10, 30, 1), op("aten::mm", 0, 5)))
    assert (found.marked, found.steps) == (False, (0,))
    assert {(s.kind, s.name): s.per_step_ns for s in found.series if s.kind != "part"} == {
        ("kernel", "a"): (20,), ("operator", "aten::mm"): (5,),
    }  # fmt: skip


def test_a_gpu_trace_and_a_cpu_trace_are_not_compared() -> None:
    cpu = profile(trace(op("aten::mm", 0, 5)))
    with pytest.raises(UsageError, match="cannot be compared"):
        diff(FAST, cpu)


def test_a_trace_in_which_nothing_ran_has_no_profile() -> None:
    assert isinstance(profiled(trace(mark("x", 0, 5))), Unavailable)


def test_with_six_steps_a_side_a_kernel_that_changed_is_significant_among_many_and_new_ones_have_no_p() -> None:
    def made(slow: float, last: str) -> WorkProfile:
        rows: list[Row] = []
        time = 100
        for step in range(6):
            begin = time
            rows.append(mark(f"ProfilerStep#{step}", begin - 50, begin - 10))
            for number in range(60):
                # Neighbouring steps differ by up to 4%, in an order that no two kernels share.
                ns = 1000 + (step * (7 + number) * 13) % 41 + round((slow - 1) * 1000) * (number == 7)
                call = 100 * step + number + 1
                rows += [launch(begin - 40, begin - 39, call), kernel(f"k{number}", time, time + ns, call)]
                time += ns
            call = 100 * step + 99
            rows += [launch(begin - 40, begin - 39, call), kernel(last, time, time + 900, call)]
            time += 900
        return profile(trace(*rows))

    found = {row.name: row for row in diff(made(1.0, "old_kernel"), made(1.5, "new_kernel"), limit=None).kernels}
    assert found["k7"].p_value < 0.01
    assert (found["new_kernel"].presence, found["new_kernel"].p_value) == ("new", None)
    assert (found["old_kernel"].presence, found["old_kernel"].p_value) == ("gone", None)
    assert all(row.p_value > 0.05 for name, row in found.items() if row.presence == "both" and name != "k7")  # type: ignore[operator]


@pytest.mark.parametrize(
    ("low", "high", "p", "verdict"),
    [
        (1.1, 1.3, 0.01, "slower"),
        (0.7, 0.9, 0.01, "faster"),
        (0.7, 0.9, 0.2, "not clear"),
        (0.9, 1.1, 0.01, "not clear"),
        (0.9, 1.1, 0.2, "no significant difference"),
    ],
)
def test_where_test_and_interval_disagree_nothing_is_decided(low: float, high: float, p: float, verdict: str) -> None:
    ratio = Estimate(value=(low + high) / 2, low=low, high=high)
    assert step_verdict(Change(ratio=ratio, p_value=p), "over 9 + 9 steps")[0] == verdict
