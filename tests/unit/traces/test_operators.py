"""Operators: host time once, device time through launches, FLOP from records or shapes.

Weights by the shapes of recorded inputs.
"""

from __future__ import annotations

import pytest
from tests.hand_events import kernel, launch, op, trace

from stepscope.records.trace_work import OperatorTable
from stepscope.traces.events import RankTrace, RankView
from stepscope.traces.operators import layer_calls, operator_table
from stepscope.traces.sections import Wanted


def table(made: RankTrace, sort: str = "device_self") -> OperatorTable:
    return operator_table(RankView(made, Wanted(sort=sort)))


@pytest.mark.parametrize(
    ("sort", "first"), [("host_self", "c"), ("host_total", "a"), ("calls", "b"), ("name", "a"), ("device_self", "b")]
)
def test_rows_sort_by_any_key(sort: str, first: str) -> None:
    made = trace(
        op("a", 0, 100), op("c", 5, 95), op("b", 110, 111), op("b", 120, 121),
        launch(110, 111, 1), kernel("k", 112, 119, 1),
    )  # fmt: skip
    assert table(made, sort=sort).rows[0].name == first


def test_recorded_flop_win_over_shapes() -> None:
    found = table(trace(op("aten::mm", 0, 5, dims="[[4, 8], [8, 2]]", flop=1000), op("aten::relu", 5, 9)))
    assert found.flop_source == "recorded"
    assert {r.name: r.flop for r in found.rows} == {"aten::mm": 1000, "aten::relu": 0}


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
