from __future__ import annotations

import pytest

from stepscope.diagnose.unit_facts import MessageCost, buckets_of, fitted

MIB = 1 << 20


def test_latency_and_bandwidth_of_messages_of_several_sizes() -> None:
    transfers = [(size, 100_000 + size // 10) for size in (1024, 4096, MIB, 4 * MIB) for _ in range(3)]
    cost = fitted([*transfers, (MIB, 10**9)])  # one of them stalled
    assert cost is not None
    assert cost.latency_ns == pytest.approx(100_000, rel=0.02)
    assert cost.ns_per_byte == pytest.approx(0.1, rel=0.02)
    assert cost.useful_bytes == pytest.approx(MIB, rel=0.05)


def test_of_one_size_all_time_counts_by_the_byte() -> None:
    cost = fitted([(MIB, 500_000), (MIB, 700_000), (MIB, 600_000)])
    assert cost is not None
    assert (cost.latency_ns, cost.of(2 * MIB)) == (0.0, 1_200_000)


def test_without_sizes_nothing_is_known() -> None:
    assert fitted([(0, 100), (10, 0)]) is None


@pytest.mark.parametrize(
    ("total", "cap", "sizes"), [(0.5, 25, [0.5]), (11, 5, [1, 5, 5]), (12, 5, [1, 5, 5, 1]), (26, 25, [1, 25])]
)
def test_buckets_are_filled_after_a_first_small_one(total: float, cap: int, sizes: list[float]) -> None:
    assert buckets_of(total * MIB, cap * MIB) == [size * MIB for size in sizes]


def test_the_last_bucket_stays_exposed_and_what_the_computation_is_too_short_for() -> None:
    cost = MessageCost(latency_ns=1000.0, ns_per_byte=1.0)
    assert cost.least_exposed(16 * MIB, room_ns=1e12) == 1000 + 256 * 1024
    assert cost.least_exposed(16 * MIB, room_ns=0) == pytest.approx(16 * MIB + 2000)
