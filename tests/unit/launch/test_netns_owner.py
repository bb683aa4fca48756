"""Leftovers are ended by the name of their owner: the dead's only."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from stepscope.launch.netns import namespaces
from stepscope.launch.netns.namespaces import sweep, this_process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="network namespaces are Linux's")

Sleeper = Callable[[str], subprocess.Popen[bytes]]


@pytest.fixture
def sleeper(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sleeper]:
    """Starts a process that carries an owner's name, under a variable that no test beside this one sweeps by."""
    variable = f"STEPSCOPE_TEST_OWNER_{os.getpid()}"
    monkeypatch.setattr(namespaces, "VARIABLE", variable)
    started = []

    def start(name: str) -> subprocess.Popen[bytes]:
        line = [sys.executable, "-c", "import time; time.sleep(60)"]
        started.append(subprocess.Popen(line, env={**os.environ, variable: name}))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def dead() -> str:
    """The owner that a process was which has ended."""
    line = "from stepscope.launch.netns.namespaces import this_process; print(this_process())"
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_process_whose_owner_has_ended_is_ended(sleeper: Sleeper, dead: str) -> None:
    left = sleeper(dead)
    assert left.pid in sweep()
    assert left.wait(timeout=10) == -signal.SIGKILL


def test_a_process_whose_owner_lives_is_left_alone(sleeper: Sleeper) -> None:
    ours = sleeper(this_process())
    assert ours.pid not in sweep()
    assert ours.poll() is None


def test_a_number_used_again_is_another_owner(sleeper: Sleeper) -> None:
    left = sleeper(this_process().rpartition("-")[0] + "-1")
    assert left.pid in sweep()


@pytest.mark.parametrize("name", ["", "someone else's", "1-2", "1-2-x"])
def test_a_name_that_is_not_ours_is_left_alone(sleeper: Sleeper, name: str) -> None:
    assert sleeper(name).pid not in sweep()


def test_an_owner_that_counts_processes_elsewhere_is_not_judged(sleeper: Sleeper, dead: str) -> None:
    assert sleeper(f"1{dead}").pid not in sweep()
