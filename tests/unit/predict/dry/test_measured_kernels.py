"""Operators of a trace in place of the roofline."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.dry_ranks import VIEW, dry_rank, pointwise, product
from tests.hand_events import kernel, launch, op, trace

from stepscope.predict.dry.measured import calibrated
from stepscope.records.dry_run import DryOperator
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
FOREACH = replace(ADD, op="aten._foreach_add_.List", shapes=((4,), (2, 2), (4,), (2, 2)), phase="optimizer")
OPERATORS = (product(64, 16, 32), product(128, 16, 32), ADD, pointwise("mul", 4096), FOREACH, VIEW)


def hundred(row: DryOperator) -> float:
    return 0.0 if row is VIEW else 100.0


def test_operators_are_known_by_their_shapes_with_the_mean_time_of_the_device() -> None:
    rows = rows_by_shapes(RankView(ON_GPU))
    assert [(row.shapes, row.calls, row.device_self_ns) for row in rows] == [
        ("[[64, 32], [32, 16]]", 2, 50), ("[[8, 8], [8, 8]]", 1, 5)
    ]  # fmt: skip
    found = calibrated(dry_rank(OPERATORS), rows, hundred)
    assert found.kernel_ns(OPERATORS[0]) == 25


def test_without_a_device_the_host_counts_and_other_shapes_take_its_efficiency() -> None:
    found = calibrated(dry_rank(OPERATORS), rows_by_shapes(RankView(ON_CPU)), hundred)
    times = [found.kernel_ns(row) for row in OPERATORS]
    assert times[:2] == [10, 10]  # a product of other shapes: a tenth of what is predicted, too
    assert times[2:4] == [3, 3]  # another memory-bound operator: as far off as its kind
    assert times[4:] == [9, 0]
    assert found.share == pytest.approx(3 / 5)


def test_on_another_device_operators_are_as_efficient_as_on_the_measured_one() -> None:
    rows = rows_by_shapes(RankView(ON_CPU))
    found = calibrated(dry_rank(OPERATORS), rows, lambda row: hundred(row) / 2, here=hundred)
    assert found.kernel_ns(ADD) == 1.5


def test_nothing_measured_changes_nothing() -> None:
    assert calibrated(dry_rank(OPERATORS), (), hundred).kernel_ns(ADD) == 100.0
