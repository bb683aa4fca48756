"""Where and when: cache folder, names that tell paths apart, and the time of day."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from stepscope.core.errors import UsageError


def cache_dir(environ: Mapping[str, str]) -> Path:
    """``$XDG_CACHE_HOME/stepscope``, else ``~/.cache/stepscope``."""
    home = environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "stepscope"


def telling_names(paths: Sequence[Path]) -> list[str]:
    """Last parts of the paths, as many as tell all of them apart. Raises UsageError for a path given twice."""
    whole = [Path(os.path.realpath(path)).parts for path in paths]
    for depth in range(1, max(map(len, whole), default=0) + 1):
        names = ["/".join(parts[-depth:]) for parts in whole]
        if len(set(names)) == len(names):
            return names
    if not whole:
        return []
    twice = next(path for at, path in enumerate(paths) if whole[at] in whole[:at])
    raise UsageError(f"{twice} is given twice", fix="name each path once")


def utc_now() -> str:
    """Now, as ISO 8601 in UTC with seconds: ``2026-11-20T23:21:07Z``."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
