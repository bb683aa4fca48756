"""What a command file exports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command: a typer-style function that returns its exit code (None: 0).

    panel: heading it is listed under in ``--help``. Heavy imports belong inside ``run``: the file itself is
    imported whenever help is shown.
    """

    run: Callable[..., Any]
    panel: str = "Commands"
    allow_extra_args: bool = False
