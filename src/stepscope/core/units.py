"""The only place that scales numbers for people. Inside, everything is bytes, ns, FLOP and 1/s.

MB = 1e6 bytes and MiB = 2**20 bytes, always. Sizes that a user types follow nccl-tests: ``1K`` is 1024 bytes.
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
_DURATION_UNITS = {
    "ns": 1,
    "us": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "min": 60 * 10**9,
    "h": 3600 * 10**9,
}


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


def _scaled(value: float, steps: tuple[tuple[float, str], ...]) -> str:
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
    return _scaled(ns, ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1, "ns")))


def format_bytes(size_bytes: float) -> str:
    """Decimal: ``1.50 MB`` = 1.5e6 bytes."""
    return _scaled(size_bytes, ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B")))


def format_bytes_binary(size_bytes: float) -> str:
    """Binary: ``25.0 MiB`` = 25 * 2**20 bytes; for memory and bucket sizes."""
    return _scaled(size_bytes, ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")))


def format_size(size_bytes: float) -> str:
    """Binary, without idle zeros: ``64 KiB``, ``1.5 MiB``; message sizes that people ask for are mostly round."""
    number, _, unit = format_bytes_binary(size_bytes).partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"


def format_bandwidth(bytes_per_s: float) -> str:
    """``123 GB/s`` with GB = 1e9."""
    return _scaled(bytes_per_s, ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1, "B/s")))


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
    return _scaled(flops_per_s, ((1e15, "PFLOP/s"), (1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1e6, "MFLOP/s")))
