"""sbatch, asked: would Slurm take a script, and here it is. Slurm's own words say why not."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from stepscope.core.errors import MissingError
from stepscope.core.processes import ask

_TIMEOUT_S = 60.0


def has_sbatch() -> bool:
    return shutil.which("sbatch") is not None


def refusal(script: Path) -> str | None:
    """Say why Slurm would not take the script now, in its own words (``sbatch --test-only``); None where it would."""
    code, output = _sbatch_code_and_output(["--test-only", str(script)])
    return None if code == 0 else output


def submit(script: Path, *, after: Sequence[str] = ()) -> str:
    """Hand the script to Slurm and return the job's id. after: jobs that end first, well or not. Raises MissingError."""
    dependency = [f"--dependency=afterany:{':'.join(after)}"] if after else []
    code, output = _sbatch_code_and_output(["--parsable", *dependency, str(script)])
    match = re.search(r"^\d+", output, re.MULTILINE)
    if code != 0 or match is None:
        raise MissingError(f"Slurm did not take {script}", why=output, fix=f"correct the script, then: sbatch {script}")
    return match[0]


def _sbatch_code_and_output(words: Sequence[str]) -> tuple[int, str]:
    """Return exit code and output of sbatch. Raises MissingError where it cannot be started."""
    line = ["sbatch", *words]
    try:
        done = ask(line, environ=os.environ, timeout_s=_TIMEOUT_S)
    except OSError as error:
        raise MissingError("sbatch cannot be started", why=str(error)) from None
    except subprocess.TimeoutExpired:
        raise MissingError(
            f"sbatch does not answer within {_TIMEOUT_S:.0f} s", fix="see whether slurmctld runs: scontrol ping"
        ) from None
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return done.returncode, "; ".join(lines)
