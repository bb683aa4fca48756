"""Did-you-mean."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

ELSEWHERE = {"gpu": "cuda", "gpus": "cuda", "mean": "avg", "average": "avg", "mul": "product", "prod": "product"}
"""Words of other tools, and our own, which is not always the one that looks most alike."""


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """The known name closest to ``word``, or None when nothing is close."""
    import difflib  # with a mistake only: every start would pay for it

    names = list(known)
    if (ours := ELSEWHERE.get(word.lower())) in names:
        return ours
    close = difflib.get_close_matches(word.lower(), names, n=1, cutoff=0.6)
    return close[0] if close else None


def named(name: str, known: Iterable[str]) -> list[str]:
    """The known name that is exactly ``name``, else all that begin with it: a name as offered always names one."""
    names = list(known)
    return [name] if name in names else [each for each in names if each.startswith(name)]


SHORT, MOST_LISTED = 12, 30
"""Known names that a sentence lists beside a guess, and without one."""


def unknown(kind: str, word: str, known: Iterable[str]) -> str:
    """One sentence: unknown KIND 'WORD'; did you mean 'X'? Known: a, b, c. A long list is left out beside a guess."""
    names = sorted(known)
    guess = did_you_mean(word, names)
    if len(names) > (SHORT if guess else MOST_LISTED):
        return f"unknown {kind} {word!r}; " + (f"did you mean {guess!r}?" if guess else f"{len(names)} are known")
    if not names:
        return f"unknown {kind} {word!r}: none is known here"
    hint = f"; did you mean {guess!r}?" if guess else "."
    return f"unknown {kind} {word!r}{hint} Known: {', '.join(names)}"


def nearest_path(path: Path, otherwise: str = "check the path") -> str:
    """What to do about a path that does not exist: take the name beside it that looks most alike, or ``otherwise``."""
    import difflib

    try:
        beside = [each.name for each in path.parent.iterdir()]
    except OSError:  # the folder does not exist either
        beside = []
    close = difflib.get_close_matches(path.name, beside, n=1, cutoff=0.75)
    return f"did you mean {path.parent / close[0]}?" if close else otherwise
