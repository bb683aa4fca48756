"""Nsight Systems' own reports (.nsys-rep): only nsys reads them; its SQLite export is what stepscope reads."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

from stepscope.core.errors import DataError, MissingError


def exported(report: Path) -> Path:
    """The SQLite export beside ``report``: the one that is there and as new, else the one that the installed nsys makes.

    Raises MissingError with the command to run where nsys is not installed, DataError where it fails.
    """
    export = report.with_suffix(".sqlite")
    try:
        if export.stat().st_mtime >= report.stat().st_mtime:
            return export
    except FileNotFoundError:
        pass
    line = ["nsys", "export", "--type", "sqlite", "--force-overwrite", "true", "--output", str(export), str(report)]
    if shutil.which("nsys") is None:
        raise MissingError(
            f"{report}: only nsys reads this file",
            why="nsys is not installed, or not on PATH",
            fix="run this where nsys is installed, and pass the result: "
            f"{shlex.join(['nsys', *line[1:4], '--output', *line[-2:]])}",
        )
    done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if done.returncode != 0 or not export.is_file():
        said = (done.stderr or done.stdout).strip().splitlines()
        raise DataError(
            f"{report}: nsys could not export it",
            why=said[-1] if said else f"exit code {done.returncode}",
            fix=f"run it by hand: {shlex.join(line)}",
        )
    return export
