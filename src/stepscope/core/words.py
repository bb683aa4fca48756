"""Words for people: counted nouns, lists and ranges, groups of what is alike, did-you-mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

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


ELSEWHERE = {"gpu": "cuda", "gpus": "cuda", "mean": "avg", "average": "avg", "mul": "product", "prod": "product"}
"""Words of other tools -> our own word, which is not always the one that looks most alike."""


def did_you_mean(word: str, choices: Iterable[str]) -> str | None:
    """The known name closest to ``word``, or None when nothing is close."""
    import difflib  # with a mistake only: every start would pay for it

    names = list(choices)
    if (ours := ELSEWHERE.get(word.lower())) in names:
        return ours
    close = difflib.get_close_matches(word.lower(), names, n=1, cutoff=0.6)
    return close[0] if close else None


def named(name: str, choices: Iterable[str]) -> list[str]:
    """The known name that is exactly ``name``, else all that begin with it: a name as offered always names one."""
    names = list(choices)
    return [name] if name in names else [choice for choice in names if choice.startswith(name)]


SHORT, MOST_LISTED = 12, 30
"""Known names that a sentence lists beside a guess, and without one."""


def unknown(kind: str, word: str, choices: Iterable[str]) -> str:
    """One sentence: unknown KIND 'WORD'; did you mean 'X'? Known: a, b, c. A long list is left out beside a guess."""
    names = sorted(choices)
    guess = did_you_mean(word, names)
    if len(names) > (SHORT if guess else MOST_LISTED):
        return f"unknown {kind} {word!r}; " + (f"did you mean {guess!r}?" if guess else f"{len(names)} are known")
    if not names:
        return f"unknown {kind} {word!r}: none is known here"
    hint = f"; did you mean {guess!r}?" if guess else "."
    return f"unknown {kind} {word!r}{hint} Known: {', '.join(names)}"


def nearest_path(path: Path, otherwise: str = "check the path") -> str:
    """Say what to do about a path that does not exist: take the name beside it that looks most alike, or ``otherwise``."""
    import difflib

    try:
        beside = [sibling.name for sibling in path.parent.iterdir()]
    except OSError:  # the folder does not exist either
        beside = []
    close = difflib.get_close_matches(path.name, beside, n=1, cutoff=0.75)
    return f"did you mean {path.parent / close[0]}?" if close else otherwise


T = TypeVar("T")
K = TypeVar("K")


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Put items of equal ``key`` together, in order of first appearance."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def ranges(numbers: Iterable[int], *, least: int = 2) -> str:
    """``0-7``, ``0, 3-5``: so many neighbours as one, fewer by themselves; each number once."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{a}-{b}" if b - a + 1 >= least else ", ".join(map(str, range(a, b + 1))) for a, b in runs)


_URL = re.compile(r"([a-z][a-z0-9+.-]+):/{1,3}([^/].*)")
_WITHOUT_HOST = ("file", "local", "memory")


def url_of(path: object) -> str | None:
    """Return ``path`` as a URL, also where a Path has joined its slashes, or None for a path of this machine."""
    match = _URL.fullmatch(str(path))
    if match is None:
        return None
    return f"{match[1]}://{'/' if match[1] in _WITHOUT_HOST else ''}{match[2]}"


def holds_any(text: str, words: str) -> bool:
    """Return whether one of the words, of which blanks separate them, is anywhere in the text."""
    return any(word in text for word in words.split())
