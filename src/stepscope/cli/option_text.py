"""What the text of an option means: lists, whole numbers, ranges, choices, durations. Mistakes raise UsageError."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

from stepscope.core.errors import UsageError
from stepscope.core.words import unknown

T = TypeVar("T")

_MOST = 1_000_000


def listed(text: str | None) -> tuple[str, ...]:
    """The words between commas, each once; none for None."""
    return tuple(dict.fromkeys(part.strip() for part in (text or "").split(",") if part.strip()))


def whole_numbers(option: str, text: str, *, most: int) -> tuple[int, ...]:
    """``1,2,8`` as numbers from 1 to ``most``, each once, in their order."""
    found = listed(text)
    if not found:
        raise UsageError(f"{option} is empty")
    for part in found:
        if not part.isdecimal() or not 1 <= int(part) <= most:
            raise UsageError(f"{option} {part!r}: expected whole numbers from 1 to {most:,}, such as {option} 2,4,8")
    return tuple(dict.fromkeys(int(part) for part in found))


def whole_or_auto(option: str, text: str, *, least: int) -> int | None:
    """A number of at least ``least``; None for auto."""
    if text.strip() == "auto":
        return None
    if not text.strip().isdecimal() or int(text) < least:
        raise UsageError(f"{option} {text!r} is neither auto nor a whole number of at least {least}")
    return int(text)


def parse_ranges(text: str | None, option: str) -> frozenset[int] | None:
    """The numbers of ``3``, ``0,4`` or ``10-14``; None when nothing was given."""
    if text is None:
        return None
    numbers: set[int] = set()
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", part)
        if found is None:
            raise UsageError(f"{option} {text!r}: expected numbers such as 3, 0,4 or 10-14")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first or last - first > _MOST:
            raise UsageError(f"{option} {text!r}: {part.strip()!r} is not a range")
        numbers.update(range(first, last + 1))
    return frozenset(numbers)


def choice(option: str, text: str, choices: Mapping[str, T]) -> T:
    """What the word stands for."""
    try:
        return choices[text.strip().lower()]
    except KeyError:
        raise UsageError(unknown(f"value of {option}", text, choices)) from None


def duration_ns(option: str, text: str) -> int:
    """``5s``, ``250ms`` or ``2min``, above 0."""
    from stepscope.core.units import parse_duration_ns

    try:
        duration = parse_duration_ns(text)
    except UsageError as error:
        raise UsageError(f"{option}: {error.what}", fix=error.fix) from None
    if duration <= 0:
        raise UsageError(f"{option} {text!r} is not a duration above 0", fix="write 5s, 250ms or 2min")
    return duration
