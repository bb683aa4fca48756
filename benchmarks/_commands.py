"""Running stepscope's own command line in a benchmark, and reading what it left."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from stepscope.records.comm import CommRow
from stepscope.results.comm_rows import read_comm_rows


def stepscope(*arguments: str, env: Mapping[str, str] | None = None, prefix: tuple[str, ...] = ()) -> str:
    """Stdout of ``stepscope ARGUMENTS``; ends the benchmark with the command's own words when it fails."""
    command = [*prefix, sys.executable, "-m", "stepscope.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(env or {})}, check=False)
    if done.returncode:
        sys.exit(f"stepscope {' '.join(arguments)} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def comm(
    folder: Path, *arguments: str, env: Mapping[str, str] | None = None, prefix: tuple[str, ...] = ()
) -> tuple[CommRow, ...]:
    """Rows of ``stepscope comm ARGUMENTS`` in the new run folder ``folder``."""
    stepscope("comm", *arguments, "-o", str(folder), "--json", env=env, prefix=prefix)
    return read_comm_rows(folder)
