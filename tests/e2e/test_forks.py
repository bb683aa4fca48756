"""The tests' own server of processes: it runs the checkout under test, and nothing of it stays, however the tests end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.torch_forks import BARE

import stepscope

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
WHERE = """
import subprocess, sys
from tests.torch_forks import ForkedPopen, shared_server
line = [sys.executable, sys.argv[1]]
print(ForkedPopen(line, server=shared_server(), env={}, stdout=subprocess.PIPE, text=True).communicate()[0])
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


def test_forks_run_the_checkout_that_the_tests_import(tmp_path: Path) -> None:
    """Another one may be installed. A sitecustomize of the surrounding shell stays outside."""
    other, shell, script = tmp_path / "checkout", tmp_path / "shell", tmp_path / "script.py"
    other.mkdir()
    shell.mkdir()
    (other / "stepscope").symlink_to(Path(stepscope.__file__).parent)
    (shell / "sitecustomize.py").write_text("import builtins\nbuiltins.hooked = True\n")
    script.write_text("import builtins, stepscope\nprint(stepscope.__file__, hasattr(builtins, 'hooked'))\n")
    environ = {**os.environ, BARE: "1", "PYTHONPATH": os.pathsep.join([str(shell), str(other)])}
    line = [sys.executable, "-c", WHERE, str(script)]
    done = subprocess.run(line, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [str(other / "stepscope" / "__init__.py"), "False"], done.stderr
