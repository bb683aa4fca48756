"""The only place that scales numbers for people. Inside, everything is bytes, ns, FLOP and 1/s.

MB = 1e6 bytes and MiB = 2**20 bytes, always. Sizes that a user types follow nccl-tests: ``1K`` is 1024 bytes, ``1K:1G:2``
the sizes from 1 KiB to 1 GiB by a factor of 2, ``1M:8M:+1M`` those by a step.
"""

from __future__ import annotations

import re

from stepscope.core.errors import UsageError

_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[a-zA-Z]*)")
_SIZE_UNITS = {
    "": 1, "b": 1,
    "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}  # fmt: skip
_DURATION_UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}


def parse_size_bytes(text: str) -> int:
    """Bytes from ``512``, ``1K`` (1024), ``25MiB``, ``25MB`` (25e6)."""
    match = _SIZE.fullmatch(text.strip())
    scale = _SIZE_UNITS.get(match["unit"].lower()) if match else None
    if match is None or scale is None:
        raise UsageError(f"{text!r} is not a size", fix="write bytes (512), 1K = 1024, 25MiB or 25MB")
    return round(float(match["number"]) * scale)


def parse_duration_ns(text: str) -> int:
    """Nanoseconds from ``90`` (seconds), ``250ms``, ``60s``, ``5min``, ``2h``."""
    match = _SIZE.fullmatch(text.strip())
    scale = _DURATION_UNITS.get(match["unit"].lower() or "s") if match else None
    if match is None or scale is None:
        raise UsageError(f"{text!r} is not a duration", fix="write seconds (90), 250ms, 60s, 5min or 2h")
    return round(float(match["number"]) * scale)


def _scaled_text(value: float, steps: tuple[tuple[float, str], ...]) -> str:
    for scale, unit in steps:
        if abs(value) >= scale:
            return f"{_three_digits(value / scale)} {unit}"
    scale, unit = steps[-1]
    return f"{_three_digits(value / scale)} {unit}"


def _three_digits(value: float) -> str:
    """At least three significant digits, never an exponent: 0.0123, 1.23, 12.3, 123, 1,234."""
    magnitude = abs(value)
    if magnitude >= 100 or magnitude == 0:
        return f"{value:,.0f}"
    if magnitude >= 10:
        return f"{value:.1f}"
    if magnitude >= 1:
        return f"{value:.2f}"
    return f"{value:.3g}"


def format_duration(ns: float) -> str:
    """``1.23 ms``, ``45.6 s``, ``2 min 05 s``, ``1 h 02 min``."""
    seconds = round(ns / 1e9)
    if seconds >= 3600:
        minutes = round(seconds / 60)
        return f"{minutes // 60} h {minutes % 60:02d} min"
    if seconds >= 120:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return _scaled_text(ns, ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1, "ns")))


def format_microseconds(ns: float) -> str:
    """``1.23``, ``123.4``, ``12345``: microseconds with nccl-tests' number of decimals, without their unit."""
    us = ns / 1e3
    return f"{us:.0f}" if us >= 10_000 else f"{us:.1f}" if us >= 100 else f"{us:.2f}"


def format_decimal(value: float) -> str:
    """``230.29``, ``0.124``, ``0.0031``: two decimals as in nccl-tests, below 1 as many as show two digits."""
    places = 2 if value >= 1 or value <= 0 else next((n for n in range(3, 9) if round(value * 10**n) >= 10), 9)
    return f"{value:.{places}f}"


def format_bytes(size_bytes: float) -> str:
    """Decimal: ``1.50 MB`` = 1.5e6 bytes."""
    return _scaled_text(size_bytes, ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B")))


def format_bytes_binary(size_bytes: float) -> str:
    """Binary: ``25.0 MiB`` = 25 * 2**20 bytes; for memory and bucket sizes."""
    return _scaled_text(size_bytes, ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")))


def format_size(size_bytes: float) -> str:
    """Binary, without idle zeros: ``64 KiB``, ``1.5 MiB``; message sizes that people ask for are mostly round."""
    number, _, unit = format_bytes_binary(size_bytes).partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"


def format_bandwidth(bytes_per_s: float) -> str:
    """``123 GB/s`` with GB = 1e9."""
    return _scaled_text(bytes_per_s, ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1, "B/s")))


def format_percent(fraction: float, *, digits: int | None = None, signed: bool = False) -> str:
    """``31%``; below 10% with one digit, ``0.4%``; ``0%`` for what is less than half of that digit.

    digits: after the point, whatever the size. signed: ``+31%``.
    """
    if digits is None:
        digits = 1 if abs(fraction) < 0.0995 else 0
    text = f"{fraction * 100:{'+' if signed else ''}.{digits}f}"
    return f"{'0' if float(text) == 0 else text}%"


def format_plus_minus(share: float) -> str:
    """``±2%``, below 1% ``±0.4%``: an interval beside its value."""
    return "±<0.1%" if share < 0.0005 else f"±{format_percent(share, digits=1 if share < 0.0095 else 0)}"


def format_number(value: float, digits: int = 4) -> str:
    """``42,783``, ``12.3``, ``0.5``: ``digits`` significant ones, all before the point, no zeros at the end."""
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def format_count(value: float) -> str:
    """``24.8M``, ``1.02B``, ``812``: parameters."""
    for scale, unit in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= scale:
            return f"{_three_digits(value / scale)}{unit}"
    return f"{value:.0f}"


def format_flops(flops_per_s: float) -> str:
    """``989 TFLOP/s``."""
    return _scaled_text(flops_per_s, ((1e15, "PFLOP/s"), (1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1e6, "MFLOP/s")))


MOST_SIZES = 200


def parse_sizes(text: str) -> tuple[int, ...]:
    """Sizes in bytes, in the order given, none twice. Raises UsageError."""
    sizes: list[int] = []
    for part in text.split(","):
        sizes += _range_of_sizes(part.strip()) if ":" in part else [_one_size_bytes(part.strip())]
    if len(sizes) > MOST_SIZES:
        raise UsageError(f"{text!r} is more than {MOST_SIZES} sizes", fix="use a larger factor or step")
    return tuple(dict.fromkeys(sizes))


def _one_size_bytes(text: str) -> int:
    try:
        return parse_size_bytes(text)
    except UsageError as error:
        raise UsageError(error.what, fix="write sizes, 64K,1M,25MiB (1K = 1024), or FROM:TO:FACTOR, 1K:64M:4") from None


def _range_of_sizes(text: str) -> list[int]:
    """Return the sizes of ``FROM:TO[:FACTOR]``, bytes. Raises UsageError for others."""
    first, _, rest = text.partition(":")
    last, _, growth = rest.partition(":")
    if not last or growth.count(":"):
        raise UsageError(f"{text!r} is not a range of sizes", fix="write FROM:TO:FACTOR, such as 1K:64M:4")
    low, high = parse_size_bytes(first), parse_size_bytes(last)
    if low > high:
        raise UsageError(
            f"{text!r} goes from {format_size(low)} down to {format_size(high)}",
            fix=f"write {last}:{first}",
        )
    if growth.startswith("+"):
        step = parse_size_bytes(growth[1:])
        if step < 1:
            raise UsageError(f"the step of {text!r} is 0", fix="write FROM:TO:+STEP with a step of 1 byte or more")
        return list(range(low, high + 1, step)[: MOST_SIZES + 1])
    return _geometric_sizes(text, low, high, growth or "2")


def _geometric_sizes(text: str, low: int, high: int, growth: str) -> list[int]:
    """Return the sizes from low to high, each so many times the one before. Raises UsageError for a factor that is none."""
    try:
        factor = float(growth)
    except ValueError:
        raise UsageError(
            f"{growth!r} in {text!r} is not a factor", fix="write FROM:TO:FACTOR, such as 1K:64M:4"
        ) from None
    if not 1 < factor < 1e6:
        raise UsageError(f"the factor {growth} in {text!r} is not above 1", fix="write a factor such as 2 or 4")
    if low == 0:
        raise UsageError(f"{text!r} starts at 0, and 0 times any factor is 0", fix="start at 1 byte or more")
    sizes: list[int] = []
    size = float(low)
    while size <= high and len(sizes) <= MOST_SIZES:
        sizes.append(round(size))
        size *= factor
    return sizes
