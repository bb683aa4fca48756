"""Facts that only rules ask for, on events whose answer is known."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.hand_events import kernel, launch, mark, op, trace
from tests.trace_builder import build, write_job

from stepscope.traces.job import analyse_job
from stepscope.traces.load import Wanted
from stepscope.traces.rank_pass import analyse
from stepscope.traces.rule_facts import kernel_mix


def test_kernels_by_kind_and_how_many_are_short() -> None:
    made = trace(
        kernel("ampere_sgemm_128x64_nn", 0, 50_000),
        kernel("ampere_sgemm_32x32_nn", 50_000, 60_000),
        kernel("vectorized_elementwise_kernel", 60_000, 63_000),
        kernel("ncclDevKernel_AllReduce", 0, 90_000),
    )
    mix = kernel_mix(made)
    assert mix is not None
    assert (mix.calls, mix.total_ns, mix.short_calls, mix.short_ns) == (3, 63_000, 2, 13_000)
    first = mix.kinds[0]
    assert (first.kind, first.calls, first.total_ns) == ("matrix_fp32", 2, 60_000)
    assert (first.largest, first.largest_ns) == ("ampere_sgemm_128x64_nn", 50_000)


def test_communication_alone_has_no_mix() -> None:
    assert kernel_mix(trace(kernel("ncclDevKernel_AllReduce", 0, 90_000))) is None


def test_lateness_is_split_into_operators_and_python() -> None:
    made = trace(
        op("aten::relu", 0, 10_000), launch(5_000, 9_000, 1), kernel("a", 10_000, 20_000, 1),
        op("aten::relu", 60_000, 100_000), launch(90_000, 95_000, 2), kernel("a", 95_000, 99_000, 2),
    )  # fmt: skip
    late = analyse(made, Wanted(sections=frozenset({"idle"}))).host_lateness
    assert late is not None
    assert (late.late_ns, late.python_ns, late.operator_ns) == (75_000, 40_000, 35_000)


@pytest.mark.parametrize(
    ("shape", "overlap", "place"),
    [("naive", True, "after"), ("ddp", True, "inside"), ("ddp", False, "inside")],
)
def test_reductions_are_placed_against_the_backward_pass(tmp_path: Path, shape: str, overlap: bool, place: str) -> None:
    job = build(shape=shape, world=2, steps=3, layers=4, overlap=overlap)
    for each in analyse_job(write_job(job, tmp_path)).ranks:
        sync = each.gradient_sync
        assert sync is not None
        assert sync.steps == 3
        assert {p: getattr(sync, p).calls for p in ("before", "inside", "after")} == {
            "before": 0,
            "inside": 0,
            "after": 0,
            place: 12,
        }
        planted = job.truth[each.facts.rank].exposed_comm_ns
        assert getattr(sync, place).exposed_ns == planted


def test_reductions_of_the_forward_pass_come_before(tmp_path: Path) -> None:
    job = build(shape="tensor", world=2, steps=3, layers=4)
    for each in analyse_job(write_job(job, tmp_path)).ranks:
        assert each.gradient_sync is not None
        assert each.gradient_sync.before.calls == 12


def test_operators_as_short_as_their_call_are_the_hosts_time() -> None:
    """A thousand of 3 us, 1 us apart; and one of DTensor: 400 us, 100 of them in the operator that it ends up in."""
    rows = [mark("ProfilerStep#1", 0, 5_000_000)]
    rows += [op("aten::add", 4_000 * i, 4_000 * i + 3_000) for i in range(1000)]
    rows += [op("aten::linear", 4_000_000, 4_400_000), op("PythonSubclass", 4_000_000, 4_400_000)]
    rows += [op("aten::addmm", 4_200_000, 4_300_000)]
    found = analyse(trace(*rows), Wanted()).host_lateness
    assert found is not None
    assert (found.dispatch_calls, found.dispatch_ns) == (1000, 3_000_000 + 300_000)
    assert found.python_ns == 1_600_000
    assert 0 <= found.least_python_ns < found.python_ns
