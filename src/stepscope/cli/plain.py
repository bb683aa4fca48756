"""Command lines that need no explanation, read without typer.

Importing typer, and its checks through pydantic, takes longer than reading a small trace. ``read`` takes a line of
known options with plain values by itself; whatever it does not understand (a mistake, ``--help``) is typer's to read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")


class Argument:
    """What ``typer.Argument`` says, without typer."""

    def __init__(self, *names: str, **settings: Any) -> None:
        self.names = names
        self.settings = settings

    def for_typer(self) -> Any:
        """typer's own object of it."""
        import typer

        return typer.Argument(**self.settings)


class Option(Argument):
    """What ``typer.Option`` says, without typer."""

    def for_typer(self) -> Any:
        """typer's own object of it."""
        import typer

        return typer.Option(*self.names, **self.settings)


def read(kind: type[T], words: Sequence[str]) -> T | None:
    """The options in ``words``; None where typer has to look: for what is unknown, missing, odd or asks for help.

    Only for kinds whose every field has an ``Option`` or ``Argument`` of this module.
    """
    if "--help" in words or "-h" in words:
        return None
    hints = {name: get_args(hint)[:2] for name, hint in get_type_hints(kind, include_extras=True).items()}
    if not all(isinstance(said, Argument) for _, said in hints.values()):
        return None
    options = {_name(name, said): name for name, (_, said) in hints.items() if isinstance(said, Option)}
    places = [name for name, (_, said) in hints.items() if not isinstance(said, Option)]
    values: dict[str, Any] = {}
    coming = iter(words)
    for word in coming:
        spelled, equals, text = word.partition("=") if word.startswith("-") else ("", "=", word)
        name = options.get(spelled) if spelled else next(iter(places), None)
        if name is None:
            return None
        annotation, said = hints[name]
        several = get_origin(annotation) is tuple
        if name in values and not several:
            return None
        if annotation is bool:
            if equals:
                return None
            values[name] = True
            continue
        if not equals:
            text = next(coming, "-")
            if text.startswith("-"):
                return None
        value = _READERS[get_args(annotation)[0] if get_args(annotation) else annotation](text)
        least = said.settings.get("min")
        if value is None or (least is not None and value < least):
            return None
        values[name] = (*values.get(name, ()), value) if several else value
    given = values.keys() | {name for name in hints if hasattr(kind, name)}
    return kind(**values) if given >= hints.keys() else None


_FLOAT = re.compile(r"[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() else None


def _real(text: str) -> float | None:
    return float(text) if _FLOAT.fullmatch(text) else None


_READERS: dict[type, Callable[[str], Any]] = {str: str, int: _whole, float: _real, Path: Path}


def _name(name: str, said: Option) -> str:
    return said.names[0] if said.names else "--" + name.replace("_", "-")
