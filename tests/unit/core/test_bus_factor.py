"""busbw / algbw: the figures that nccl-tests prints."""

from __future__ import annotations

import pytest

from stepscope.collectives import REGISTRY
from stepscope.core.bus_factor import BUS_FACTORS, OF_WHOLE_BUFFERS


@pytest.mark.parametrize(
    ("op", "factor"),
    [("all_reduce", 1.75), ("all_gather", 0.875), ("reduce_scatter", 0.875), ("all_to_all", 0.875),
     ("broadcast", 1.0), ("reduce", 1.0), ("send_recv", 1.0), ("gather", 0.875), ("scatter", 0.875)],
)  # fmt: skip
def test_factors_are_those_of_nccl_tests(op: str, factor: float) -> None:
    assert BUS_FACTORS[op](8) == OF_WHOLE_BUFFERS[op](8) == factor


def test_a_rank_s_own_part_of_an_all_to_all_v_counts_where_s_has_it() -> None:
    assert (BUS_FACTORS["all_to_all_v"](8), OF_WHOLE_BUFFERS["all_to_all_v"](8)) == (1.0, 0.875)


def test_every_collective_with_a_payload_has_one() -> None:
    assert set(BUS_FACTORS) == {op for op in REGISTRY.names() if REGISTRY.load(op).has_payload}
