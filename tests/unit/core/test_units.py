import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core import units
from stepscope.core.errors import UsageError


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("512", 512),
        ("1K", 1024),
        ("1k", 1024),
        ("25MiB", 25 * 2**20),
        ("25MB", 25_000_000),
        ("1.5G", 3 * 2**29),
    ],
)
def test_sizes_follow_nccl_tests_and_tell_mb_from_mib(text: str, size_bytes: int) -> None:
    assert units.parse_size_bytes(text) == size_bytes


@pytest.mark.parametrize("text", ["", "K", "1X", "-1", "1 K K", "1e3"])
def test_what_is_not_a_size_is_refused_with_examples(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size") as caught:
        units.parse_size_bytes(text)
    assert "1K = 1024" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "ns"), [("90", 90 * 10**9), ("250ms", 250 * 10**6), ("1.5s", 15 * 10**8), ("2h", 7200 * 10**9)]
)
def test_durations_default_to_seconds(text: str, ns: int) -> None:
    assert units.parse_duration_ns(text) == ns


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"), (999, "999 ns"), (1234, "1.23 us"), (12_345_678, "12.3 ms"), (5_600_000_000, "5.60 s"),
        (125e9, "2 min 05 s"), (3720e9, "1 h 02 min"),
    ],
)  # fmt: skip
def test_durations_read_well_at_every_magnitude(ns: float, text: str) -> None:
    assert units.format_duration(ns) == text


def test_decimal_and_binary_bytes_are_named_apart() -> None:
    assert units.format_bytes(25 * 2**20) == "26.2 MB"
    assert units.format_bytes_binary(25 * 2**20) == "25.0 MiB"


@pytest.mark.parametrize(("count", "text"), [(812, "812"), (24_800_000, "24.8M"), (1_020_000_000, "1.02B")])
def test_counts_are_short(count: int, text: str) -> None:
    assert units.format_count(count) == text


@given(st.floats(min_value=1, max_value=1e15, allow_nan=False))
def test_a_printed_duration_is_within_one_percent(ns: float) -> None:
    text = units.format_duration(ns)
    if " min" in text or " h " in text:
        return
    number, unit = text.split()
    scale = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}[unit]
    assert abs(float(number) * scale - ns) <= 0.01 * ns + 0.5


@pytest.mark.parametrize(
    ("fraction", "text"),
    [
        (0.314, "31%"),
        (1.0, "100%"),
        (0.0996, "10%"),
        (0.0994, "9.9%"),
        (0.044, "4.4%"),
        (0.004, "0.4%"),
        (0.0004, "0%"),
        (0, "0%"),
        (-0.0004, "0%"),
        (-0.05, "-5.0%"),
    ],
)
def test_percent_has_a_digit_below_ten(fraction: float, text: str) -> None:
    assert units.format_percent(fraction) == text


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(42_783.4, 4, "42,783"), (999.96, 4, "1000"), (12.5, 4, "12.5"), (0.012345, 4, "0.01235"), (-42_783, 3, "-42,783"),
     (99.96, 3, "100"), (0.0, 3, "0")],
)  # fmt: skip
def test_a_number_keeps_what_stands_before_the_point(value: float, digits: int, text: str) -> None:
    assert units.format_number(value, digits) == text


def test_thousands_have_commas_in_every_unit() -> None:
    assert units.format_bandwidth(1.2e12) == "1,200 GB/s"
    assert units.format_flops(2.5e18) == "2,500 PFLOP/s"


@pytest.mark.parametrize(("share", "text"), [(0.0001, "±<0.1%"), (0.004, "±0.4%"), (0.021, "±2%"), (0.25, "±25%")])
def test_an_interval_is_known_to_a_percent(share: float, text: str) -> None:
    assert units.format_plus_minus(share) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (124.95, "2 min 05 s"),
        (126.4, "2 min 06 s"),
        (119.6, "2 min 00 s"),
        (3599.7, "1 h 00 min"),
        (3720, "1 h 02 min"),
    ],
)
def test_long_durations_are_rounded_not_cut(seconds: float, text: str) -> None:
    assert units.format_duration(seconds * 1e9) == text
