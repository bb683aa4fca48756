"""Command lines run in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Said(NamedTuple):
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str


Ran = Callable[..., Said]
"""Words of a command line, paths among them, to what it said; the fixture ``ran`` of tests/unit/cli."""
