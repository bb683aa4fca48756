"""Names of users in pictures and file names: nothing in them is markup, a path or a line of its own."""

from __future__ import annotations

from functools import lru_cache

LONGEST = 60
"""Characters of one name in a chart; what is longer is cut."""


@lru_cache(maxsize=4096)
def clean(text: str, longest: int = LONGEST) -> str:
    """One printable line of at most ``longest`` characters."""
    kept = text if text.isascii() and text.isprintable() else "".join(map(_printable, text))
    return shortened(" ".join(kept.split()), longest)


def _printable(char: str) -> str:
    import unicodedata

    return " " if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn") else char


def shortened(text: str, longest: int) -> str:
    """``text`` with an ellipsis for its middle where it is too long: names mostly differ at their ends."""
    if len(text) <= longest:
        return text
    head = (longest - 1) * 3 // 5
    tail = max(0, longest - 1 - head)
    return f"{text[:head].rstrip()}…{text[-tail:].lstrip() if tail else ''}"


def lines(text: str, width: int, most: int = 2) -> str:
    """``text`` broken into at most ``most`` lines of ``width`` characters; what does not fit is cut."""
    import textwrap

    found = textwrap.wrap(text, width, break_on_hyphens=False) or [""]
    if len(found) > most:
        found = [*found[: most - 1], shortened(" ".join(found[most - 1 :]), width)]
    return "\n".join(shortened(line, width) for line in found)


def file_part(text: str) -> str:
    """``AG_News``: letters, digits and ``-_.``, never a path or a hidden file; ``unnamed`` where nothing is left."""
    kept = "".join(c if c.isalnum() or c in "-_." else "_" if c.isspace() else "-" for c in clean(text))
    return kept.strip(".-_") or "unnamed"
