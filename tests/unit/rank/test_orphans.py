"""A rank whose launcher is gone goes too, also while it is still importing torch."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

LIMIT_S = 30.0

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="Linux alone tells a process of its parent's end"
)


def test_a_launcher_killed_while_its_rank_imports_torch_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(
        "import pathlib, time\npathlib.Path(__file__).with_suffix('.begun').touch()\ntime.sleep(120)\n"
    )
    launcher = (
        "import subprocess, sys, time\n"
        "rank = subprocess.Popen([sys.executable, '-m', 'stepscope.rank', 'spec.json'], start_new_session=True)\n"
        "print(rank.pid, flush=True)\n"
        "time.sleep(120)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", launcher],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert process.stdout is not None
    rank = psutil.Process(int(process.stdout.readline()))
    try:
        _wait(lambda: (tmp_path / "torch.begun").exists(), "the rank never began to import torch")
        process.kill()
        process.wait()
        _wait(lambda: not rank.is_running() or rank.status() == psutil.STATUS_ZOMBIE, "the rank lives on")
    finally:
        process.kill()
        process.stdout.close()
        if rank.is_running():
            rank.kill()


def _wait(done: object, otherwise: str) -> None:
    assert callable(done)
    limit = time.monotonic() + LIMIT_S
    while not done():
        assert time.monotonic() < limit, otherwise
        time.sleep(0.02)
