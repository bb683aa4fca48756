"""What a probe is given and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stepscope.core.dataclass import record
from stepscope.core.errors import Unavailable


@record
class ProbeContext:
    """Where a probe looks; tests give it a made-up machine.

    root: stands for ``/`` when reading /proc, /sys and /dev.
    environ: the environment variables.
    cwd: the directory whose file system runs will be written to.
    torch_timeout_s, command_timeout_s: seconds after which a child process is killed.
    remember: take and keep answers that cannot change (probes/torch.py).
    """

    environ: Mapping[str, str]
    root: Path = Path("/")
    cwd: Path = Path()
    torch_timeout_s: float = 60.0
    command_timeout_s: float = 20.0
    remember: bool = False


Facts = Mapping[str, Any]
"""Fields of EnvironmentRecord (other names go to its ``extra``); Unavailable for a part that could not be had."""


@record
class Probe:
    """``run`` returns Facts, or Unavailable when there is nothing to tell at all. It never raises for a machine
    that lacks something."""

    summary: str
    run: Callable[[ProbeContext], Facts | Unavailable]


PROBES: dict[str, Probe] = {}
"""The shipped probes by key."""


def probe(summary: str) -> Callable[[Callable[[ProbeContext], Facts | Unavailable]], Probe]:
    """Makes a function the probe of its own name."""

    def add(run: Callable[[ProbeContext], Facts | Unavailable]) -> Probe:
        PROBES[run.__name__] = Probe(summary=summary, run=run)
        return PROBES[run.__name__]

    return add


def read_text(path: Path) -> str | None:
    """Content of a small kernel file without surrounding blanks; None where it is absent or not readable."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
