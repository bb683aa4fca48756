"""The tests' own server of processes: nothing of it stays, however the tests end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.torch_forks import BARE

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
TESTS = """
import time
from tests.torch_forks import shared_server
server = shared_server()
(server.folder / "facts").touch()
print(server.folder, flush=True)
time.sleep(100)
"""


def test_the_shared_folder_goes_with_a_killed_process_of_the_tests() -> None:
    """SIGKILL, and SIGTERM too, leave a Python process no time to remove anything."""
    line = [sys.executable, "-c", TESTS]
    environ = {**os.environ, BARE: "1"}
    process = subprocess.Popen(
        line, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    assert (folder / "facts").exists()
    process.kill()
    process.wait(timeout=60)
    process.stdout.close()
    limit = time.monotonic() + 60
    while folder.exists():
        assert time.monotonic() < limit
        time.sleep(0.05)
