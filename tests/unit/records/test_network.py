"""What an emulated network may be called, and that one network has one name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.errors import UsageError
from stepscope.records.network import (
    MAX_DELAYED_RATE,
    EmulatedNetwork,
    SlowHost,
    host_of_ranks,
    hosts_for,
    obstacle,
    parse_network,
)


@pytest.mark.parametrize(
    ("text", "network"),
    [
        ("1gbit", EmulatedNetwork(rate_bits_per_s=10**9)),
        ("200mbit", EmulatedNetwork(rate_bits_per_s=200 * 10**6)),
        ("2gbit:2", EmulatedNetwork(rate_bits_per_s=2 * 10**9, hosts=2)),
        ("2.5gbit:4", EmulatedNetwork(rate_bits_per_s=2_500_000_000, hosts=4)),
        ("1gbit:2,delay=1ms", EmulatedNetwork(rate_bits_per_s=10**9, hosts=2, delay_ns=10**6)),
        ("1gbit,delay=0.5ms", EmulatedNetwork(rate_bits_per_s=10**9, delay_ns=500_000)),
        (
            "1gbit:8,slow=3:200mbit",
            EmulatedNetwork(rate_bits_per_s=10**9, hosts=8, slow=(SlowHost(host=3, rate_bits_per_s=2 * 10**8),)),
        ),
    ],
)  # fmt: skip
def test_a_text_is_read_as_documented(text: str, network: EmulatedNetwork) -> None:
    assert parse_network(text) == network


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1gbit", "1000mbit"),
        ("2.5gbit:2", "2500mbit:2"),
        ("1Gbit, delay=1ms", "1gbit,delay=1000us"),
        (
            "1gbit:4,slow=2:100mbit,slow=1:200mbit,delay=1ms",
            "1gbit:4,delay=1ms,slow=1:200mbit,slow=2:100mbit",
        ),
    ],
)
def test_two_ways_of_writing_one_network_have_one_canonical_text(one: str, other: str) -> None:
    assert str(parse_network(one)) == str(parse_network(other))


@given(
    rate=st.integers(1_000_000, 2_000_000_000),
    hosts=st.none() | st.integers(2, 64),
    delay_ns=st.integers(0, 10**9),
    slow=st.dictionaries(st.integers(0, 1), st.integers(1_000_000, 10**9)),
)
def test_the_canonical_text_of_any_network_reads_back_as_it(
    rate: int, hosts: int | None, delay_ns: int, slow: dict[int, int]
) -> None:
    network = EmulatedNetwork(
        rate_bits_per_s=rate,
        hosts=hosts,
        delay_ns=delay_ns,
        slow=tuple(SlowHost(host=h, rate_bits_per_s=r) for h, r in sorted(slow.items())),
    )
    assert parse_network(str(network)) == network


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "'' is not a rate"),
        ("fast", "'fast' is not a rate"),
        ("1gbps", "rates end in kbit, mbit or gbit"),
        ("1GB/s", "rates end in kbit, mbit or gbit"),
        ("10", "'10' is not a rate"),
        ("0gbit", "outside 1mbit to 100gbit"),
        ("500gbit", "outside 1mbit to 100gbit"),
        ("1gbit:", "'' is not a number of hosts"),
        ("1gbit:1", "'1' is not a number of hosts from 2"),
        ("1gbit:65", "'65' is not a number of hosts"),
        ("1gbit:two", "'two' is not a number of hosts"),
        ("1gbit:2,delay=1", "'1' is not a one-way delay"),
        ("1gbit:2,delay=0ms", "'0ms' is not a one-way delay"),
        ("1gbit:2,delay=2s", "'2s' is not a one-way delay"),
        ("1gbit:2,delay=1ms,delay=2ms", "delay is given twice"),
        ("1gbit:2,latency=1ms", "'latency=1ms' is neither"),
        ("1gbit:2,", "'' is neither"),
        ("1gbit:2,slow=1", "slow=1 is not slow=HOST:RATE"),
        ("1gbit:2,slow=2:200mbit", "host 2 does not exist: hosts are 0 to 1"),
        ("1gbit:4,slow=2:200mbit,slow=2:100mbit", "a host is slow twice"),
    ],
)
def test_a_bad_text_says_what_is_wrong_and_shows_right_ones(text: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_network(text)
    assert why in (caught.value.why or "")
    assert "1gbit:2,delay=1ms" in (caught.value.fix or "")


def test_a_delay_at_a_rate_that_the_router_cannot_carry_is_refused() -> None:
    assert parse_network("2gbit,delay=1ms").rate_bits_per_s == MAX_DELAYED_RATE
    with pytest.raises(UsageError, match="more than 2gbit"):
        parse_network("4gbit,delay=1ms")


@pytest.mark.parametrize(
    ("text", "world_size", "hosts"),
    [
        ("1gbit", 4, (0, 1, 2, 3)),
        ("1gbit:2", 4, (0, 0, 1, 1)),
        ("1gbit:2", 3, (0, 0, 1)),
        ("1gbit:4", 2, (0, 1)),
        ("1gbit:3", 8, (0, 0, 0, 1, 1, 1, 2, 2)),
        ("1gbit:2", 1, (0,)),
    ],
)
def test_ranks_are_spread_evenly_and_no_host_is_empty(text: str, world_size: int, hosts: tuple[int, ...]) -> None:
    assert host_of_ranks(parse_network(text), world_size) == hosts
    assert hosts_for(parse_network(text), world_size) == len(set(hosts))


def test_a_slow_host_that_a_small_world_does_not_have_is_an_obstacle() -> None:
    network = parse_network("1gbit,slow=3:200mbit")
    assert obstacle(network, 4) is None
    assert "2 ranks are on hosts 0 to 1" in (obstacle(network, 2) or "")


def test_more_hosts_than_are_emulated_are_an_obstacle() -> None:
    assert "at most 64" in (obstacle(parse_network("1gbit"), 100) or "")


def test_the_payload_rate_leaves_out_headers() -> None:
    assert parse_network("1gbit").payload_bytes_per_s == pytest.approx(0.9564 * 125e6, rel=1e-4)
