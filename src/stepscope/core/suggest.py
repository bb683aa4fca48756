"""Did-you-mean."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """The known name closest to ``word``, or None when nothing is close."""
    import difflib  # with a mistake only: every start would pay for it

    close = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.6)
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
    hint = f"; did you mean {guess!r}?" if guess else "."
    return f"unknown {kind} {word!r}{hint} Known: {', '.join(names) if names else '(none)'}"
