"""``stepscope profile`` around hooked_job.py, whose torch is a stand-in that starts in milliseconds."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.runs import Cli, Done

from stepscope.records.profile import JobEnd
from stepscope.results.profiled_job import read_job_end
from stepscope.store.layout import ProfileLayout

FAKE_TORCH = {"PYTHONPATH": str(Path(__file__).parents[1] / "fake_torch")}
PYTHON = sys.executable
JOB = [PYTHON, str(Path(__file__).parent / "hooked_job.py")]
WAIT_9 = ("--steps", "3", "--wait", "9")


def end_of(folder: Path) -> JobEnd:
    found = read_job_end(ProfileLayout(folder))
    assert found is not None
    return found


@dataclass(frozen=True)
class Profiled:
    """out: the folder of ``-o``. words: what hooked_job.py does, ``launch N MODE`` or ``MODE``."""

    cli: Cli
    out: Path

    def start(
        self, *words: str, options: tuple[str, ...] = (), command: str = "profile", **more: str
    ) -> subprocess.Popen[str]:
        return self.cli.start(command, *options, "-o", str(self.out), "--", *JOB, *words, **FAKE_TORCH | more)

    def __call__(
        self, *words: str, options: tuple[str, ...] = (), code: int | None = 0, command: str = "profile", **more: str
    ) -> Done:
        """The finished command; code: what it ends with, None: whatever."""
        done = self.cli.finished(self.start(*words, options=options, command=command, **more))
        assert code in (None, done.code), done.err
        return done

    def around(self, *command: str, code: int = 0, options: tuple[str, ...] = (), **more: str) -> Done:
        """The same of another command."""
        done = self.cli("profile", *options, "-o", str(self.out), "--", *command, **FAKE_TORCH | more)
        assert done.code == code, done.err
        return done
