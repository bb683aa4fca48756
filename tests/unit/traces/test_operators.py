"""Operators: host time once, device time through launches, FLOP from records or shapes.

Weights by the shapes of recorded inputs.
"""

from __future__ import annotations

import pytest
from tests.hand_events import call, kernel, launch, op, trace

from stepscope.records.trace_work import OperatorRow, OperatorTable
from stepscope.traces.events import RankTrace, RankView
from stepscope.traces.operators import layer_calls, operator_table
from stepscope.traces.sections import Wanted


def table(made: RankTrace, sort: str = "device_self") -> OperatorTable:
    return operator_table(RankView(made, Wanted(sort=sort)))


def by_name(found: OperatorTable) -> dict[str, OperatorRow]:
    return {r.name: r for r in found.rows}


LINEAR = (
    op("aten::linear", 0, 100),
    op("aten::addmm", 10, 60),
    launch(20, 25, 1),
    op("aten::relu", 70, 90),
    launch(75, 80, 2),
    kernel("gemm", 40, 140, 1),
    kernel("relu", 140, 150, 2),
    kernel("from before the capture", 0, 7),
    launch(200, 205, 3),
    kernel("outside", 210, 213, 3),
)


def test_device_time_goes_to_the_innermost_operator_around_the_launch_and_to_all_around_it() -> None:
    rows = by_name(table(trace(*LINEAR)))
    assert {n: (r.device_self_ns, r.device_total_ns, r.device_events) for n, r in rows.items()} == {
        "aten::linear": (0, 110, 0),
        "aten::addmm": (100, 100, 1),
        "aten::relu": (10, 10, 1),
    }
    assert {n: (r.host_self_ns, r.host_total_ns) for n, r in rows.items()} == {
        "aten::linear": (30, 100),
        "aten::addmm": (50, 50),
        "aten::relu": (20, 20),
    }


def test_a_call_inside_a_call_of_the_same_name_counts_once_in_the_totals() -> None:
    rows = by_name(table(trace(
        op("aten::sum", 0, 50), op("aten::sum", 10, 30), launch(12, 14, 1), kernel("k", 20, 29, 1),
    )))  # fmt: skip
    row = rows["aten::sum"]
    assert (row.calls, row.host_total_ns, row.host_self_ns) == (2, 50, 50)
    assert (row.device_total_ns, row.device_self_ns) == (9, 9)


def test_one_launch_may_have_many_kernels() -> None:
    rows = by_name(table(trace(
        op("graph", 0, 50), call("cudaGraphLaunch", 5, 9, correlation=4), kernel("a", 10, 20, 4), kernel("b", 20, 25, 4),
    )))  # fmt: skip
    assert (rows["graph"].device_self_ns, rows["graph"].device_events) == (15, 2)


def test_a_launch_on_a_thread_of_another_id_belongs_to_the_operator_of_its_external_id() -> None:
    rows = by_name(table(trace(
        op("aten::mm", 0, 50, external_id=8), op("aten::add", 60, 70, external_id=9),
        launch(5, 9, 1, thread="native", external_id=8), kernel("a", 10, 20, 1),
        launch(15, 19, 2, thread="native", external_id=9), kernel("b", 20, 30, 2),  # not open then: not its own
    )))  # fmt: skip
    assert (rows["aten::mm"].device_self_ns, rows["aten::add"].device_self_ns) == (10, 0)


def test_a_cpu_trace_works_and_sorts_by_host_time() -> None:
    found = table(trace(op("a", 0, 5), op("b", 10, 30)))
    assert [r.name for r in found.rows] == ["b", "a"]
    assert found.device_ns == 0


@pytest.mark.parametrize(
    ("sort", "first"), [("host_self", "c"), ("host_total", "a"), ("calls", "b"), ("name", "a"), ("device_self", "b")]
)
def test_rows_sort_by_any_key(sort: str, first: str) -> None:
    made = trace(
        op("a", 0, 100), op("c", 5, 95), op("b", 110, 111), op("b", 120, 121),
        launch(110, 111, 1), kernel("k", 112, 119, 1),
    )  # fmt: skip
    assert table(made, sort=sort).rows[0].name == first


def test_shapes_tell_the_flop_of_matrix_products() -> None:
    rows = [
        op("aten::mm", 0, 5, dims="[[4, 8], [8, 2]]"),
        op("aten::mm", 5, 9, dims="[[4, 8], [8, 2]]"),
        op("aten::mm", 9, 12, dims="[[1, 8], [8, 1]]"),
        op("aten::bmm", 12, 15, dims="[[3, 4, 8], [3, 8, 2]]"),
        op("aten::addmm", 15, 20, dims="[[2], [4, 8], [8, 2], [], []]"),
        op("aten::relu", 20, 22, dims="[[4, 8]]"),
    ]
    found = table(trace(*rows))
    assert {r.name: (r.calls, r.flop) for r in found.rows} == {
        "aten::mm": (3, 2 * 2 * 4 * 8 * 2 + 2 * 8),
        "aten::bmm": (1, 2 * 3 * 4 * 8 * 2),
        "aten::addmm": (1, 2 * 4 * 8 * 2),
        "aten::relu": (1, None),
    }
    assert found.flop_source == "shapes"


def test_recorded_flop_win_over_shapes() -> None:
    found = table(trace(op("aten::mm", 0, 5, dims="[[4, 8], [8, 2]]", flop=1000), op("aten::relu", 5, 9)))
    assert found.flop_source == "recorded"
    assert {r.name: r.flop for r in found.rows} == {"aten::mm": 1000, "aten::relu": 0}


def test_without_records_or_shapes_flop_are_unknown_with_the_reason() -> None:
    found = table(trace(op("aten::mm", 0, 5)))
    assert found.rows[0].flop is None
    assert "record_shapes" in found.flop_unavailable


def test_odd_shapes_leave_the_flop_unknown() -> None:
    found = table(trace(op("aten::mm", 0, 5, dims="[[[4, 8], [8, 2]]]"), op("aten::mm", 5, 6, dims="[[4], [8, 2]]")))
    assert found.rows[0].flop is None


def test_calls_by_the_shapes_of_their_weights_each_counted_once() -> None:
    found = layer_calls(
        trace(
            op("aten::embedding", 0, 10, dims="[[1000, 64], [2, 16], [], [], []]"),
            op("aten::linear", 10, 30, dims="[[2, 16, 64], [256, 64], [256]]"),
            op("aten::addmm", 12, 28, dims="[[256], [32, 64], [64, 256], [], []]"),  # what the linear layer calls
            op("aten::addmm", 30, 40, dims="[[192], [32, 64], [64, 192], [], []]"),  # a layer of its own
            op("aten::scaled_dot_product_attention", 40, 50, dims="[[2, 4, 16, 16], [2, 2, 16, 16], [2, 2, 16, 16]]"),
            op("aten::_scaled_dot_product_flash_attention_for_cpu_backward", 80, 90),
            op("aten::linear", 50, 60, dims="[[], []]"),
            op("aten::linear", 60, 70),
        ).events
    )
    assert found.linear == {(256, 64): 1, (192, 64): 1}
    assert found.embedding == {(1000, 64): 1}
    assert found.attention_backward == 1
    assert found.attention == {((2, 4, 16, 16), (2, 2, 16, 16)): 1}
