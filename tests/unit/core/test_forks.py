"""Work shared among forked processes: every result once, errors and ends told apart, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.stalled_import import wait_until
from tests.trace_builder import build, write_job

from stepscope.core import forks
from stepscope.core.errors import DataError, MissingError, StepscopeError
from stepscope.core.forks import ProcessKilledError, map_forked
from stepscope.traces import job
from stepscope.traces.sections import Wanted

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")


def nothing(item: object) -> None:
    pass


def test_every_item_is_worked_on_once_and_results_are_in_their_order() -> None:
    items = list(range(5000))  # two processes that ask at once are sure to occur
    done: list[int] = []
    assert map_forked(lambda n: n * n, items, 3, done=done.append) == [n * n for n in items]
    assert sorted(done) == items


def test_a_result_larger_than_a_pipe_holds_waits_until_the_caller_takes_it() -> None:
    text = b"x" * (1 << 20)
    slow = time.sleep
    assert map_forked(lambda n: text * n, [1, 2, 3], 2, done=nothing, meanwhile=lambda: slow(0.2)) == [
        text,
        text * 2,
        text * 3,
    ]


def test_processes_are_not_the_caller_and_share_the_work(tmp_path: Path) -> None:
    def pid_beside_another(_: int) -> int:
        (tmp_path / str(os.getpid())).touch()
        limit = time.monotonic() + 30
        while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < limit:
            time.sleep(0.005)
        return os.getpid()

    found = map_forked(pid_beside_another, range(8), 2, done=nothing)
    assert len(set(found)) == 2
    assert os.getpid() not in found


def test_an_error_on_purpose_is_that_item_s_result() -> None:
    def refuse_two(number: int) -> int:
        if number == 2:
            raise DataError("two", why="it is two", fix="leave it out")
        return number

    found = map_forked(refuse_two, [1, 2, 3], 2, done=nothing)
    assert found[::2] == [1, 3]
    assert isinstance(found[1], StepscopeError)
    assert "it is two" in str(found[1])


def test_a_bug_is_printed_where_it_happened(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="what it printed"):
        map_forked(lambda n: 1 // n, [1, 0], 2, done=nothing)
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_a_killed_process_is_said(forked: list[int]) -> None:
    with pytest.raises(ProcessKilledError):
        map_forked(lambda _: os.kill(os.getpid(), signal.SIGKILL), [1], 1, done=nothing)
    assert all_collected(forked)


def test_an_interrupt_ends_the_processes_at_once(forked: list[int]) -> None:
    task_s = 60

    def interrupt() -> None:
        raise KeyboardInterrupt

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        map_forked(lambda _: time.sleep(task_s), [1, 2], 2, done=nothing, meanwhile=interrupt)
    assert time.monotonic() - started < task_s
    assert all_collected(forked)


def test_nothing_goes_on_when_the_caller_is_killed(tmp_path: Path) -> None:
    script = (
        "import os, sys, time\nfrom pathlib import Path\nfrom stepscope.core.forks import map_forked\n"
        "def work(_):\n    Path(sys.argv[1]).write_text(str(os.getpid()))\n    time.sleep(60)\n"
        "map_forked(work, [1], 1, done=print)\n"
    )
    told = tmp_path / "pid"
    process = subprocess.Popen([sys.executable, "-c", script, str(told)])
    wait_until(lambda: told.exists() and told.read_text() != "", "no process was forked")
    process.kill()
    process.wait()
    wait_until(lambda: ended(int(told.read_text())), "the process outlived its caller")


def ended(pid: int) -> bool:
    """Gone, or dead and not yet collected by whoever inherits it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes that are forked here."""
    found: list[int] = []
    fork = os.fork

    def noted() -> int:
        pid = fork()
        found.append(pid)
        return pid

    monkeypatch.setattr(os, "fork", noted)
    return found


def all_collected(pids: list[int]) -> bool:
    for pid in pids:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return bool(pids)


def test_traces_read_by_forked_processes_give_the_same_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_job(build(world=4, steps=3, late={1: 300_000}), tmp_path)
    alone = job.analyse_job(folder, Wanted(processes=1))
    monkeypatch.setattr(job, "PARALLEL_FROM_BYTES", 0)
    monkeypatch.setattr(forks, "can_fork", lambda: True)
    finished: list[Path] = []
    called: list[str] = []
    (together,) = job.analyse_captures(
        folder,
        Wanted(processes=2),
        listener=job.ReadingListener(done=finished.append, meanwhile=lambda: called.append("once")),
    ).values()
    assert together == alone
    assert sorted(finished) == sorted(folder.iterdir())
    assert called == ["once"]


def test_a_damaged_trace_and_a_killed_reader_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_job(build(world=2), tmp_path)
    monkeypatch.setattr(job, "PARALLEL_FROM_BYTES", 0)
    monkeypatch.setattr(forks, "can_fork", lambda: True)
    broken = folder / "rank-1.json"
    broken.write_text(broken.read_text().replace('"ts": ', '"ts": ?', 1))
    with pytest.raises(DataError, match=r"rank-1\.json: not valid JSON near byte") as caught:
        job.analyse_job(folder, Wanted(processes=2))
    assert caught.value.fix
    monkeypatch.setattr(job, "passes_of", lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(MissingError, match="was killed"):
        job.analyse_job(folder, Wanted(processes=2))
