"""Lists of numbers on the command line: ``3``, ``0,4``, ``10-14``."""

from __future__ import annotations

import re

from stepscope.core.errors import UsageError

_MOST = 1_000_000


def parse_ranges(text: str | None, option: str) -> frozenset[int] | None:
    """The numbers meant; None when nothing was given. Raises UsageError, naming the option."""
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
