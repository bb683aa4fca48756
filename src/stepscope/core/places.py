"""Where stepscope keeps what it can make again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def cache_dir(environ: Mapping[str, str]) -> Path:
    """``$XDG_CACHE_HOME/stepscope``, else ``~/.cache/stepscope``."""
    home = environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "stepscope"
