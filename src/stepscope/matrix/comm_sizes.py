"""Sizes as a user of nccl-tests writes them: ``1K:1G:2`` (from, to, factor), ``1M:8M:+1M`` (step), ``4K,1M,25MiB``."""

from __future__ import annotations

from stepscope.core.errors import UsageError
from stepscope.core.units import format_size, parse_size_bytes

MOST_SIZES = 200


def parse_sizes(text: str) -> tuple[int, ...]:
    """Sizes in bytes, in the order given, none twice. Raises UsageError."""
    sizes: list[int] = []
    for part in text.split(","):
        sizes += _range(part.strip()) if ":" in part else [_one(part.strip())]
    if len(sizes) > MOST_SIZES:
        raise UsageError(f"{text!r} is more than {MOST_SIZES} sizes", fix="use a larger factor or step")
    return tuple(dict.fromkeys(sizes))


def _one(text: str) -> int:
    try:
        return parse_size_bytes(text)
    except UsageError as error:
        raise UsageError(error.what, fix="write sizes, 64K,1M,25MiB (1K = 1024), or FROM:TO:FACTOR, 1K:64M:4") from None


def _range(text: str) -> list[int]:
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
    return _geometric(text, low, high, growth or "2")


def _geometric(text: str, low: int, high: int, growth: str) -> list[int]:
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
