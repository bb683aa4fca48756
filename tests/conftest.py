"""For all tests: no deadlines on a shared machine, hand-built records, and nothing left behind."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import psutil
import pytest
from hypothesis import settings
from tests import examples, fake_runs

settings.load_profile(examples.SHORT)
gc.disable()  # until all tests are collected: none of what that makes is ever garbage

for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    # A shell's background job ignores Ctrl-C, and nohup's a hang-up, and hands that down: tests that send one would wait.
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

HERE = Path(__file__).parent
PATIENCE_S = 20.0
BETWEEN = 10
"""Other files for each whose tests wait: the last of those begins after two thirds of a run."""
TASKS = "/proc/self/task"

NOT_OURS = {
    "PYTEST_CURRENT_TEST",
    "TORCHINDUCTOR_CACHE_DIR",  # torch writes it the first time one of its functions asks for the folder
}


def pytest_configure(config: pytest.Config) -> None:
    """Each of several workers begins to collect elsewhere: what one has compiled, the others find."""
    worker = getattr(config, "workerinput", None)
    if worker is None or [Path(arg).resolve() for arg in config.args] != [HERE]:
        return
    found = {path.parent for path in HERE.rglob("test_*.py")}
    folders = sorted(folder for folder in found if found.isdisjoint(folder.parents))
    first = len(folders) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    config.args = [str(folder) for folder in (*folders[first:], *folders[:first])]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long early: at the end of a parallel run, short tests fill what is left on every core.

    Files whose tests wait for ranks and commands lie between others: together they would leave cores idle.
    """
    slow = {"dist": 0, "property": 1}
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path.relative_to(HERE), []).append(item)
    waiting = [file for file in sorted(files) if file.parts[0] in ("e2e", "docs")]
    busy = sorted((file for file in files if file not in waiting), key=lambda file: (slow.get(file.parts[0], 2), file))
    place = {file: number * BETWEEN for number, file in enumerate(waiting)}
    place |= {file: number + 0.5 for number, file in enumerate(busy)}
    items[:] = [item for file in sorted(files, key=lambda file: place[file]) for item in files[file]]


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)  # tests make much and keep little: the usual 700 costs a tenth of their time
    gc.enable()


@pytest.fixture(scope="session")
def fakes() -> ModuleType:
    """tests/fake_runs.py: hand-built specs, samples, rows and run folders."""
    return fake_runs


@pytest.fixture(autouse=True)
def nothing_is_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves a changed environment, a thread, a process or a process group.

    Tests marked dist share a pool of ranks that outlives them; the pool looks after its own.
    """
    if request.node.get_closest_marker("dist") is not None:
        yield
        return
    environ = dict(os.environ)
    threads = set(threading.enumerate())
    children = _children()
    yield
    changed = {key for key, _ in environ.items() ^ dict(os.environ).items()}
    assert changed <= NOT_OURS, f"environment variables were left changed: {changed}"
    limit = time.monotonic() + PATIENCE_S
    while left := _left(threads, children):
        assert time.monotonic() < limit, f"left behind: {left}"
        time.sleep(0.05)
    distributed = sys.modules.get("torch.distributed")
    assert distributed is None or not distributed.is_initialized(), "a process group was left open"


def _left(threads: set[threading.Thread], children: set[int]) -> list[object]:
    new_threads = [t for t in threading.enumerate() if t not in threads and not t.daemon]
    new_children = [pid for pid in _children() - children if not _serves_all_tests(pid)]
    return [*new_threads, *new_children]


def _children() -> set[int]:
    """Process ids of this process's children. psutil looks at every process for them: 8 ms a test."""
    try:
        return {int(pid) for task in os.listdir(TASKS) for pid in _read(f"{TASKS}/{task}/children").split()}  # noqa: PTH208
    except OSError:  # no such lists here, or a thread has just ended
        return {process.pid for process in psutil.Process().children()}


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - at every test: a Path takes longer than the kernel
        return file.read()


def _serves_all_tests(pid: int) -> bool:
    try:
        line = " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return True  # it has just ended
    return "resource_tracker" in line or "torch_forks.py" in line
