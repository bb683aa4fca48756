"""Counted nouns and lists of names in English sentences."""

from __future__ import annotations

from collections.abc import Iterable

_HISSING = ("s", "x", "ch", "sh")


def plural(number: int, noun: str) -> str:
    """``noun`` as it stands after ``number``: ``rank``, ``ranks``; ``copies``, ``batches``, ``epochs``."""
    if number == 1:
        return noun
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(_HISSING) and not noun.endswith("epoch") else f"{noun}s"


def counted(number: int, noun: str) -> str:
    """``1 GPU``, ``8 GPUs``."""
    return f"{number:,} {plural(number, noun)}"


def in_words(items: Iterable[object], *, at_most: int = 8) -> str:
    """``a``, ``a and b``, ``a, b and c``; ``a, b and 5 more`` where there are more than ``at_most``."""
    every = [str(item) for item in items]
    if len(every) > at_most:
        return listed(every, at_most=at_most)
    return " and ".join(part for part in (", ".join(every[:-1]), *every[-1:]) if part)


def listed(items: Iterable[object], *, at_most: int = 4, between: str = ", ") -> str:
    """``a, b, c``; ``a, b, c and 5 more`` where there are more than ``at_most``."""
    every = [str(item) for item in items]
    more = len(every) - at_most
    return between.join(every[:at_most]) + (f" and {more} more" if more > 0 else "")
