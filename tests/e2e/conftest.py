"""Runs the command line as a user does: a subprocess, files in, files and exit code out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
TIMEOUT_S = 240


@dataclass(frozen=True)
class Done:
    """A finished command."""

    code: int
    out: str
    err: str

    def json(self) -> dict[str, Any]:
        return json.loads(self.out)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """This process's environment with the faulty workload installed, warnings as errors in ranks, a private cache."""
    plugins = tmp_path / "plugins"
    info = plugins / "faulty_plugin-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[stepscope.workloads]\nfaulty = faulty_plugin:WORKLOAD\n"
        "[stepscope.rank.workloads]\nfaulty = faulty_plugin_rank:build\n"
    )
    path = os.pathsep.join([str(plugins), str(HERE)])
    launcher = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    return {
        **{k: v for k, v in os.environ.items() if k not in launcher},
        "PYTHONPATH": path,
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "STEPSCOPE_WARNINGS": "error",
        "COLUMNS": "160",
    }


@pytest.fixture
def start(environ: dict[str, str], tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Start ``stepscope ARGUMENTS`` in a folder of its own; what still runs at the end of the test is killed."""
    running: list[subprocess.Popen[str]] = []

    def launch(*arguments: str, **extra: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "stepscope.cli", *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environ | extra, cwd=tmp_path, start_new_session=True,
        )  # fmt: skip
        running.append(process)
        return process

    yield launch
    for process in running:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture
def stepscope(start: Callable[..., subprocess.Popen[str]]) -> Callable[..., Done]:
    """Run ``stepscope ARGUMENTS`` to its end."""

    def run(*arguments: str, **extra: str) -> Done:
        process = start(*arguments, **extra)
        out, err = process.communicate(timeout=TIMEOUT_S)
        return Done(process.returncode, out, err)

    return run


@pytest.fixture
def matrix(tmp_path: Path) -> Callable[..., Path]:
    """Write a small matrix file: one quick cell, and whatever sections the test adds."""

    def write(text: str, *, name: str = "matrix.yaml", **measure: object) -> Path:
        settings = {"warmup": 2, "budget_s": 5, "timeout_s": 60} | measure
        path = tmp_path / name
        path.write_text(
            "version: 1\n"
            "base: {workload: mlp, model: {size: tiny}, dataset: synthetic, dataset_options: {samples: 512},\n"
            "       lr: 0.05, global_batch: 32, steps: 20, world_size: 2}\n"
            "axes: {strategy: [naive]}\n"
            f"{text}\n"
            f"measure: {json.dumps(settings)}\n"
        )
        return path

    return write
