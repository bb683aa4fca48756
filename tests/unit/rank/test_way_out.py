"""A rank that is told to stop leaves, wherever it is."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.torch_forks import ForkedPopen, shared_server

SCRIPT = """
import ctypes, os, signal, sys, time
from stepscope.rank.worker import leave_when_told

def tell(text):  # a signal may come inside a print, which refuses a second one
    os.write(1, text + b"\\n")

def handler(signum, frame):
    tell(b"handled")
    if "{where}" == "python":
        os._exit(7)

for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, handler)
leave_when_told(lambda: os._exit(143), at_once=lambda: tell(b"told"), grace_s=0.2)
if "{where}" == "fork" and os.fork() == 0:
    os.kill(os.getpid(), signal.SIGTERM)  # a data worker's signal is no signal for the rank
    os._exit(0)
if "{where}" == "fork":
    os.wait()
    time.sleep(1)
    os._exit(9)
tell(b"ready")
if "{where}" == "library":
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)  # waits for itself; no signal ends that
time.sleep(60)
"""


def started(folder: Path, script: str, where: str) -> ForkedPopen:
    (folder / "rank.py").write_text(script.replace("{where}", where))
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return ForkedPopen([sys.executable, str(folder / "rank.py")], server=shared_server(), **streams)


@pytest.mark.skipif(sys.platform != "linux", reason="a mutex of glibc stands for a collective that never returns")
@pytest.mark.parametrize(("where", "code"), [("library", 143), ("python", 7)])
def test_sigterm_ends_a_rank_that_sits_in_a_library_call_and_lets_the_interpreter_go_first(
    tmp_path: Path, where: str, code: int
) -> None:
    with started(tmp_path, SCRIPT, where) as process:
        assert process.stdout.readline() == "ready\n"
        if where == "library":
            process.send_signal(signal.SIGUSR1)  # not a reason to leave
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == code
        told_at_once = "told" in process.stdout.read()
        assert told_at_once or where == "python", "before the grace; an interpreter that is free may be gone by then"


def test_a_signal_for_a_forked_data_worker_is_none_for_the_rank(tmp_path: Path) -> None:
    with started(tmp_path, SCRIPT, "fork") as process:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 9, err


ABORTS = """
import faulthandler, os, sys
from stepscope.rank.worker import on_abort

if "{where}" == "with faulthandler":
    faulthandler.enable()
on_abort(lambda: os.write(1, b"left"))
if "{where}" == "forked":
    if os.fork() == 0:
        os.abort()
    os.wait()
    os._exit(9)
os.abort()
"""


@pytest.mark.parametrize(
    ("where", "code", "out"),
    [("main", -signal.SIGABRT, "left"), ("with faulthandler", -signal.SIGABRT, "left"), ("forked", 9, "")],
)
def test_an_abort_is_told_of_before_the_process_dies_of_it_and_not_by_a_data_worker(
    tmp_path: Path, where: str, code: int, out: str
) -> None:
    with started(tmp_path, ABORTS, where) as process:
        said, err = process.communicate(timeout=60)
        assert (process.returncode, said) == (code, out), err
        assert ("Fatal Python error: Aborted" in err) == (where == "with faulthandler")
