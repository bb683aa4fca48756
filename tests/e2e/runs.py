"""Running the command line as a user does, and reading a run folder as a user's script would."""

from __future__ import annotations

import functools
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

from tests.torch_forks import CHECKOUT, ForkedPopen, shared_server

from stepscope.cli import console
from stepscope.cli.main import main
from stepscope.results.run_figures import bench_rows
from stepscope.results.runs import read_runs

T = TypeVar("T")

HERE = Path(__file__).parent
TIMEOUT_S = 280
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Done:
    """A finished command."""

    code: int
    out: str
    err: str

    def json(self) -> dict[str, Any]:
        return json.loads(self.out)


@functools.cache
def torch_facts() -> Path:
    """A cache folder with what torch says of itself: asked once, not by every command (it takes seconds)."""
    folder = shared_server().folder
    assert folder is not None
    script = folder / "ask.py"
    script.write_text("from stepscope.machine.collect import collect\ncollect(remember=True)\n")
    environ = {**os.environ, "XDG_CACHE_HOME": str(folder)}
    assert ForkedPopen([sys.executable, str(script)], server=shared_server(), env=environ).wait() == 0
    script.unlink()
    return folder


class Place:
    """A folder in which commands run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def matrix(self, text: str, *, name: str = "matrix.yaml", **measure: object) -> str:
        """Write a small matrix file, one quick cell and whatever sections the test adds; its name."""
        settings = {"warmup": 2, "budget_s": 5, "timeout_s": 60} | measure
        (self.folder / name).write_text(
            "version: 1\n"
            "base: {workload: mlp, model: {size: tiny}, dataset: synthetic, dataset_options: {samples: 512},\n"
            "       lr: 0.05, global_batch: 32, steps: 20, world_size: 2}\n"
            "axes: {strategy: [naive]}\n"
            f"{text}\n"
            f"measure: {json.dumps(settings)}\n"
            "launch: {threads_per_rank: 1}\n"  # threads of a rank on its own wait actively, for long on a busy machine
        )
        return name


class Here(Place):
    """``stepscope`` in this process, for commands that start no ranks and draw nothing: what they print and end with."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        shutil.copytree(torch_facts(), folder / "cache", dirs_exist_ok=True)

    def __call__(self, *arguments: str, **environ: str) -> Done:
        out, err, code = io.StringIO(), io.StringIO(), 0
        with (
            chdir(self.folder),
            patch.dict(os.environ, {"COLUMNS": "160", "XDG_CACHE_HOME": str(self.folder / "cache"), **environ}),
            patch.object(sys, "argv", ["stepscope", *arguments]),
            redirect_stdout(out),
            redirect_stderr(err),
        ):
            try:
                _forget_consoles()
                main()
            except SystemExit as ended:
                code = int(ended.code or 0)
            finally:
                _forget_consoles()
        return Done(code, out.getvalue(), err.getvalue())


def _forget_consoles() -> None:
    console.out.cache_clear()
    console.err.cache_clear()


class Cli(Place):
    """``stepscope`` in a folder of its own, with the faulty workload installed and warnings as errors in ranks.

    Processes are forks of one that has imported torch (tests/torch_forks.py), unless ``fresh``: then they start as a
    user's do.
    """

    def __init__(self, folder: Path, *, fresh: bool = False) -> None:
        super().__init__(folder)
        self.fresh = fresh
        self._running: list[subprocess.Popen[str]] = []
        plugins = folder / "plugins"
        info = plugins / "faulty_plugin-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty-plugin\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(
            "[stepscope.workloads]\nfaulty = faulty_plugin:WORKLOAD\n"
            "[stepscope.rank.workloads]\nfaulty = faulty_plugin_rank:build\n"
        )
        shutil.copytree(torch_facts(), folder / "cache", dirs_exist_ok=True)
        self.environ = {
            **{k: v for k, v in os.environ.items() if k not in LAUNCHER_VARIABLES},
            "PYTHONPATH": os.pathsep.join([str(plugins), str(HERE), CHECKOUT]),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "STEPSCOPE_WARNINGS": "error",
            "COLUMNS": "160",
        }

    def start(self, *arguments: str, stdout: int = subprocess.PIPE, **extra: str) -> subprocess.Popen[str]:
        return self._start("stepscope.cli", arguments, extra, stdout)

    def under_torchrun(self, *arguments: str, ranks: int = 2) -> Done:
        """``torchrun -m stepscope.cli ...``: the command joins a world that exists."""
        line = ["--standalone", "--nproc-per-node", str(ranks), "-m", "stepscope.cli", *arguments]
        return self.finished(self._start("torch.distributed.run", line, {"OMP_NUM_THREADS": "1"}))

    def _start(
        self, module: str, arguments: Sequence[str], extra: Mapping[str, str], stdout: int = subprocess.PIPE
    ) -> subprocess.Popen[str]:
        of_the_job = arguments[:1] in (("profile",), ("run",))  # which starts as ever, and imports another torch
        fresh = self.fresh or ("PYTHONPATH" in extra and not of_the_job)
        process = (subprocess.Popen if fresh else partial(ForkedPopen, server=shared_server()))(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE, text=True,
            env=self.environ | extra, cwd=self.folder, start_new_session=True,
        )  # fmt: skip
        self._running.append(process)
        return process

    def __call__(self, *arguments: str, **extra: str) -> Done:
        return self.finished(self.start(*arguments, **extra))

    def finished(self, process: subprocess.Popen[str]) -> Done:
        out, err = process.communicate(timeout=TIMEOUT_S)
        return Done(process.returncode, out, err)

    def close(self) -> None:
        """End what a failed test left running."""
        for process in self._running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            if process.stdout is not None and not process.stdout.closed:
                process.communicate()


def results(run: Path) -> list[dict[str, Any]]:
    """The rows of a run folder as ``--json`` prints them, of cells and of collectives."""
    file = run / "results.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    if any(line["schema"].startswith("stepscope.comm_row/") for line in lines):
        return lines
    rows: list[dict[str, Any]] = json.loads(json.dumps(bench_rows(read_runs(file))))
    return rows


def by_cell(run: Path) -> dict[str, dict[str, Any]]:
    """Rows by ``workload-strategy-wN``, or by the kind of fault for the faulty workload."""
    return {
        row["model"]["kind"]
        if row["workload"] == "faulty"
        else f"{row['workload']}-{row['strategy']}-w{row['world_size']}": row
        for row in results(run)
    }


def status_of(run: Path, row: dict[str, Any]) -> dict[str, Any]:
    return json.loads((run / "cells" / row["cell_id"] / "status.json").read_text())


def summaries_of(run: Path, row: dict[str, Any]) -> list[dict[str, Any]]:
    """What each rank of a cell said of itself at the end."""
    return [json.loads(path.read_text()) for path in sorted((run / "cells" / row["cell_id"]).glob("rank-*.json"))]


def samples_of(run: Path, row: dict[str, Any], rank: int) -> list[dict[str, Any]]:
    text = (run / "cells" / row["cell_id"] / f"samples-{rank:05d}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()[1:]]


def wait_for(look: Callable[[], T], process: subprocess.Popen[str], *, seconds: float = 180) -> T:
    """What ``look`` finds, as soon as it finds something; fails when the process ends before."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        try:
            found = look()
        except (ValueError, OSError):
            found = None
        if found:
            return found
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    raise AssertionError("waited in vain")
