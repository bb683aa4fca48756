"""Columns that ``--columns`` names, among those that there are: obeyed or refused, never ignored."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from stepscope.core.errors import UsageError
from stepscope.core.words import did_you_mean
from stepscope.records.imported import Stated


def plain(name: str) -> str:
    """``Step Time`` -> ``step_time``: what names are compared by."""
    return re.sub(r"[^a-z0-9/%µ]+", "_", name.strip().lower()).strip("_")


def absent_columns(names: Iterable[str], stated: Stated) -> list[str]:
    """The stated columns that are not among ``names``, spelled alike or not."""
    present = {plain(name) for name in names}
    return [name for name in stated.columns if plain(name) not in present]


def no_such_column(column: str, names: Iterable[str], *paths: Path) -> UsageError:
    """names: the columns of all ``paths``."""
    there = list(dict.fromkeys(names))
    guess = did_you_mean(column, there)
    where = f"{paths[0]} has" if len(paths) == 1 else f"none of {', '.join(map(str, paths))} has"
    return UsageError(
        f"--columns: {where} {'no' if len(paths) == 1 else 'a'} column {column!r}"
        + (f"; did you mean {guess!r}?" if guess else ""),
        why=f"there are: {', '.join(there)}",
        fix="name a column as the header has it",
    )
