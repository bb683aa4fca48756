"""A rank whose launcher is gone goes too, also while it is still importing torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests.stalled_import import stalled_module, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone tells a process of its parent's end")


def test_a_launcher_killed_while_its_rank_imports_torch_leaves_nothing(tmp_path: Path) -> None:
    begun = stalled_module(tmp_path, "torch", seconds=120)
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
    rank = psutil.Process(int(process.stdout.readline()))
    try:
        wait_until(begun.exists, "the rank never began to import torch")
        process.kill()
        process.wait()
        wait_until(lambda: not rank.is_running() or rank.status() == psutil.STATUS_ZOMBIE, "the rank lives on")
    finally:
        process.kill()
        process.stdout.close()
        if rank.is_running():
            rank.kill()
