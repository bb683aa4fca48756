"""A module whose import takes long, and waiting for what another process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

LIMIT_S = 30.0


def stalled_module(folder: Path, name: str, *, seconds: float) -> Path:
    """Write module ``name``; the file that is there once its import has begun."""
    (folder / f"{name}.py").write_text(
        f"import pathlib, time\npathlib.Path(__file__).with_suffix('.begun').touch()\ntime.sleep({seconds})\n"
    )
    return folder / f"{name}.begun"


def wait_until(done: Callable[[], bool], otherwise: str) -> None:
    """Fails with ``otherwise`` when that takes more than LIMIT_S."""
    limit = time.monotonic() + LIMIT_S
    while not done():
        assert time.monotonic() < limit, otherwise
        time.sleep(0.01)
