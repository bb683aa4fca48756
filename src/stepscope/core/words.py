"""Counting nouns in English sentences."""

from __future__ import annotations


def plural(number: int, noun: str) -> str:
    """``noun`` as it stands after ``number``: with an s unless it is 1."""
    return noun if number == 1 else f"{noun}s"


def counted(number: int, noun: str) -> str:
    """``1 GPU``, ``8 GPUs``."""
    return f"{number} {plural(number, noun)}"
