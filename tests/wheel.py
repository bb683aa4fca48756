"""Whether a wheel is whole and works, in a clean environment without torch and in one with it: ``make wheel`` runs it.

``python -m tests.wheel dist/stepscope-*.whl``. Nothing of the checkout is importable there but the example scripts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
LEFT_OUT = {".c", ".pyc", ".so"}


def missing_files(wheel: Path) -> list[str]:
    """Files of the package's source that the wheel lacks."""
    there = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src"
    ours = [path for path in (source / "stepscope").rglob("*") if path.is_file() and path.suffix not in LEFT_OUT]
    return sorted({str(path.relative_to(source)) for path in ours} - there)


class Environment:
    """A clean environment with the wheel, and a folder to work in."""

    def __init__(self, folder: Path, *requirements: str) -> None:
        venv.create(folder / "env", with_pip=True)
        self.bin, self.work = folder / "env" / "bin", folder / "work"
        self.work.mkdir()
        hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
        self.environ = {key: value for key, value in os.environ.items() if key not in hidden}
        self.environ |= {"PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}", "XDG_CACHE_HOME": str(folder / "cache")}
        self.run(
            "python", "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt"), *requirements
        )

    def run(self, *words: str, exit_code: int = 0) -> str:
        """What the command prints; ends this program where it ends otherwise than it should."""
        done = subprocess.run(words, cwd=self.work, env=self.environ, text=True, capture_output=True)
        if done.returncode != exit_code:
            sys.exit(f"{' '.join(words)} ended with {done.returncode}, not {exit_code}\n{done.stdout}\n{done.stderr}")
        return done.stdout


def without_torch(wheel: Path, folder: Path) -> None:
    """Read, judge, predict and show; what needs torch says so."""
    here = Environment(folder, str(wheel))
    where = here.run("python", "-c", "import stepscope; print(stepscope.__file__)").strip()
    assert Path(where).is_relative_to(here.bin.parent), where
    compiled = here.run("python", "-c", "import stepscope.traces._event_scan as scan; print(scan.__file__)")
    assert Path(compiled.strip()).is_relative_to(here.bin.parent), compiled
    here.run("stepscope", "example", "jobs")
    found = json.loads(here.run("stepscope", "diagnose", "jobs/straggler", "--json"))
    assert found["findings"][0]["rule"] == "straggler", found["findings"][0]
    here.run("stepscope", "trace", "jobs/ddp", "--diff", "jobs/naive")
    here.run("stepscope", "report", "jobs/straggler", "-o", "page")
    assert {"report.html", "findings.csv"} <= {path.name for path in (here.work / "page").iterdir()}
    here.run("stepscope", "predict", "--from", "jobs/ddp", "--gpus", "8", "--network", "infiniband-hdr")
    here.run("stepscope", "plan", "--model", "llama3-8b", "--gpu", "h100-sxm", "--gpus", "8")
    here.run("stepscope", "bench", "--preset", "quick", "--plan")
    here.run("stepscope", "doctor")
    here.run("python", "-c", "import stepscope; assert len(stepscope.open('jobs/straggler').ranks) == 8")
    here.run("stepscope", "demo", exit_code=3)


def with_torch(wheel: Path, folder: Path) -> None:
    """Profile a training command, unchanged, and measure."""
    here = Environment(folder, f"{wheel}[torch]")
    train = ("torchrun", "--nproc-per-node", "2", str(ROOT / "examples/train_ddp.py"), "--steps", "120")
    here.run("stepscope", "profile", "-o", "mine", "--", *train)
    assert json.loads((here.work / "mine/verdict.json").read_text())["ranks_seen"] == 2
    here.run("stepscope", "predict", "--from", "mine", "--gpus", "8")
    here.run("stepscope", "comm", "--ops", "all_reduce", "--sizes", "1M", "--budget", "1", "-o", "sweep")


def main() -> None:
    """Check the wheel that is named."""
    wheel = Path(sys.argv[1]).resolve()
    if lacking := missing_files(wheel):
        sys.exit(f"{wheel.name} lacks {', '.join(lacking)}")
    for check in (without_torch, with_torch):
        with tempfile.TemporaryDirectory() as folder:
            check(wheel, Path(folder))
        print(f"{wheel.name}: works {check.__name__.replace('_', ' ')}")  # noqa: T201


if __name__ == "__main__":
    main()
