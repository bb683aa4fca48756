"""Mistakes in a configuration file, collected so that a user sees all of them at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stepscope.core.errors import UsageError

Path = tuple[str | int, ...]
"""Where a value stands in a document: ``("axes", "world_size", 1)``."""


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """A place in a file (1-based line and column) or, for an option of the command line, the option itself (line 0).

    names_the_key: the option stands for one key only, so that a problem need not name it again.
    """

    source: str
    line: int = 0
    column: int = 0
    names_the_key: bool = False

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One mistake: where it stands, the key path it concerns, and what to do about it.

    advice: what to do, where somebody who knows the key may know better; printed after the message.
    """

    mark: Mark
    path: str
    message: str
    advice: str = ""

    def __str__(self) -> str:
        text = f"{self.message}: {self.advice}" if self.advice else self.message
        named = self.path and not self.mark.names_the_key
        return f"{self.mark}: {self.path}: {text}" if named else f"{self.mark}: {text}"


def path_text(path: Path) -> str:
    """``axes.world_size[1]`` from ``("axes", "world_size", 1)``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def raise_problems(source: str, problems: Iterable[Problem]) -> None:
    """Raise one UsageError that lists every problem in file order; return when there is none."""
    unique = sorted(set(problems))
    if not unique:
        return
    count = "1 error" if len(unique) == 1 else f"{len(unique)} errors"
    lines = "\n".join(f"  {problem}" for problem in unique)
    raise UsageError(f"{source}: {count}\n{lines}")
