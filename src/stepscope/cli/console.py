"""Results go to stdout, everything else to stderr. rich is loaded on first use."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@cache
def out() -> Console:
    """stdout, for results. Not a terminal: no colour and wide enough never to wrap a table."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=False, width=None if sys.stdout.isatty() else 200)


@cache
def err() -> Console:
    """stderr, for progress, logs and errors."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else 200)


def print_json(document: bytes | str) -> None:
    """Exactly one JSON document on stdout."""
    text = document.decode() if isinstance(document, bytes) else document
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()
