"""Operators of a trace in place of the roofline."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.dry_ranks import VIEW, dry_rank, pointwise, product
from tests.hand_events import kernel, launch, op, trace

from stepscope.predict.dry.measured import calibrated, names_in
from stepscope.records.dry_run import DryOperator
from stepscope.records.trace_work import OperatorRow
from stepscope.traces.events import RankView
from stepscope.traces.operators import rows_by_shapes

ON_GPU = trace(
    op("aten::mm", 0, 10, dims="[[64, 32], [32, 16]]"), launch(2, 4, 1), kernel("gemm", 5, 25, 1),
    op("aten::mm", 30, 40, dims="[[64, 32], [32, 16]]"), launch(32, 34, 2), kernel("gemm", 35, 65, 2),
    op("aten::mm", 70, 80, dims="[[8, 8], [8, 8]]"), launch(72, 74, 3), kernel("gemm", 75, 80, 3),
)  # fmt: skip
ON_CPU = trace(
    op("aten::mm", 0, 10, dims="[[64, 32], [32, 16]]"), op("aten::add", 10, 13, dims="[[4096], [4096], []]"),
    op("aten::_foreach_add_", 20, 29, dims="[[[4], [2, 2]], [[4], [2, 2]], []]"),
)  # fmt: skip
ADD = pointwise("add", 4096, inputs=2)
SEEN = names_in({"mm", "add", "_foreach_add_", "convolution", "mul"})
FOREACH = replace(ADD, op="aten._foreach_add_.List", shapes=((4,), (2, 2), (4,), (2, 2)), phase="optimizer")
ROW = OperatorRow(
    rank=0, name="aten::mm", shapes=None, calls=1, host_total_ns=0, host_self_ns=0, device_total_ns=0, device_self_ns=0,
    device_events=0, flop=None,
)  # fmt: skip
OPERATORS = (product(64, 16, 32), product(128, 16, 32), ADD, pointwise("mul", 4096), FOREACH, VIEW)


def hundred(row: DryOperator) -> float:
    return 0.0 if row is VIEW else 100.0


def test_operators_are_known_by_their_shapes_with_the_mean_time_of_the_device() -> None:
    rows = rows_by_shapes(RankView(ON_GPU), SEEN)
    assert [(row.shapes, row.calls, row.device_self_ns) for row in rows] == [
        ("[[64, 32], [32, 16]]", 2, 50), ("[[8, 8], [8, 8]]", 1, 5)
    ]  # fmt: skip
    found = calibrated(dry_rank(OPERATORS), rows, hundred)
    assert found.kernel_ns(OPERATORS[0]) == 25


def test_without_a_device_the_host_counts_and_other_shapes_take_its_efficiency() -> None:
    found = calibrated(dry_rank(OPERATORS), rows_by_shapes(RankView(ON_CPU), SEEN), hundred)
    times = [found.kernel_ns(row) for row in OPERATORS]
    assert times[:2] == [10, 10]  # a product of other shapes: a tenth of what is predicted, too
    assert times[2:4] == [3, 3]  # another memory-bound operator: as far off as its kind
    assert times[4:] == [9, 0]
    assert found.share == pytest.approx(3 / 5)


def test_on_another_device_operators_are_as_efficient_as_on_the_measured_one() -> None:
    rows = rows_by_shapes(RankView(ON_CPU), SEEN)
    found = calibrated(dry_rank(OPERATORS), rows, lambda row: hundred(row) / 2, here=hundred)
    assert found.kernel_ns(ADD) == 1.5


def test_nothing_measured_changes_nothing() -> None:
    assert calibrated(dry_rank(OPERATORS), (), hundred).kernel_ns(ADD) == 100.0


def test_what_is_inside_of_an_operator_is_a_part_of_it_and_what_holds_it_is_none() -> None:
    nested = trace(
        op("aten::conv2d", 0, 50, dims="[[4, 3]]"), op("aten::convolution", 2, 48, dims="[[4, 3]]"),
        op("aten::mul", 10, 20, dims="[[4]]"), launch(12, 14, 1), kernel("conv", 60, 90, 1),
    )  # fmt: skip
    rows = rows_by_shapes(RankView(nested), SEEN)
    assert [(row.name, row.host_total_ns, row.device_total_ns) for row in rows] == [("aten::convolution", 46, 30)]


def test_other_shapes_lie_on_the_line_through_the_two_nearest() -> None:
    rows = [replace(ROW, shapes=f"[[{m}, 32], [32, 16]]", host_total_ns=time) for m, time in ((64, 1100), (128, 2100))]
    operators = tuple(product(m, 16, 32) for m in (64, 128, 32, 1024))

    def in_proportion(row: DryOperator) -> float:
        return float(row.shapes[0][0])

    found = calibrated(dry_rank(operators), rows, in_proportion)
    assert [found.kernel_ns(row) for row in operators[2:]] == pytest.approx([600, 16100])  # 100 + 15.625 a row
