"""Traces read by the workers of a dask cluster: the answer of one process, whatever becomes of workers and scheduler."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.runs import Cli, Done
from tests.trace_builder import build, write_job

from stepscope.core.errors import UsageError
from stepscope.traces.cluster import BATCH_BYTES, BATCH_FILES, _file_batches, installed, scheduler_of

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(not installed(), reason="dask's distributed is not installed")]

WORLD, LATE = 4, 2

SERVE = """
import logging, sys
from distributed import LocalCluster
if __name__ == "__main__":
    with LocalCluster(n_workers={workers}, threads_per_worker=1, processes={processes}, host="127.0.0.1",
                      protocol="tcp://", dashboard_address="127.0.0.1:0", silence_logs=logging.CRITICAL) as cluster:
        print(cluster.scheduler_address.removeprefix("tcp://"), flush=True)
        sys.stdin.read()
"""


def _serve(folder: Path, *, workers: int, processes: bool, **environ: str) -> subprocess.Popen[str]:
    """A cluster that ends with its stdin."""
    script = folder / "serve.py"
    script.write_text(SERVE.format(workers=workers, processes=processes))
    return subprocess.Popen([sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                            stderr=subprocess.DEVNULL, env=os.environ | environ)  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with _serve(tmp_path_factory.mktemp("cluster"), workers=1, processes=False) as process:
        assert process.stdout is not None
        yield f"dask://{process.stdout.readline().strip()}"
        process.communicate()


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_job(build(world=WORLD, steps=4, late={LATE: 400_000}), tmp_path_factory.mktemp("trace") / "job")


def _document(done: Done) -> dict[str, Any]:
    assert done.code == 0, done.err
    return {key: value for key, value in done.json().items() if key not in ("created", "command")}


def test_the_answer_is_that_of_one_process(fresh_cli: Cli, cluster: str, job: Path) -> None:
    alone = _document(fresh_cli("trace", str(job), "--json"))
    assert [each["rank"] for each in alone["stragglers"]] == [LATE]
    assert _document(fresh_cli("trace", str(job), "--json", "--executor", cluster)) == alone


@pytest.mark.long
def test_a_damaged_file_is_refused_as_it_is_by_one_process(
    fresh_cli: Cli, cluster: str, job: Path, tmp_path: Path
) -> None:
    for rank in range(WORLD):
        text = (job / f"rank-{rank}.json").read_bytes()
        (tmp_path / f"rank-{rank}.json").write_bytes(text)
    (tmp_path / "rank-1.json.gz").write_bytes(b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03 no such stream")
    (tmp_path / "rank-1.json").unlink()
    alone, shared = (fresh_cli("trace", str(tmp_path), *more) for more in ((), ("--executor", cluster)))
    assert (shared.code, shared.err) == (alone.code, alone.err)
    assert alone.code == 2


def test_without_a_scheduler_one_error_says_so(fresh_cli: Cli, job: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and not listening: nobody answers, and nobody else takes it
        port = taken.getsockname()[1]
        done = fresh_cli("trace", str(job), "--executor", f"dask://127.0.0.1:{port}")
    assert done.code == 3
    assert done.err.startswith(f"error: no dask scheduler answers at 127.0.0.1:{port}")
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    "text", ["127.0.0.1:8786", "dask://node0", "dask://node0:x", "dask://:8786", "ray://h:1", "dask://h:0"]
)
def test_another_address_is_a_mistake_of_the_command(text: str) -> None:
    with pytest.raises(UsageError, match="expected dask://HOST:PORT"):
        scheduler_of(text)


def test_batches_hold_what_a_worker_reads_in_a_second() -> None:
    sizes = {Path(str(number)): size for number, size in enumerate([BATCH_BYTES * 2, BATCH_BYTES // 2 + 1] + [1] * 70)}
    found = _file_batches(list(sizes), sizes.__getitem__)
    assert [file for batch in found for file in batch] == list(sizes)
    assert [len(batch) for batch in found] == [1, BATCH_FILES, BATCH_FILES, 7]


WORK = """
import os, signal
from pathlib import Path

def ends_its_worker(file):
    if file.name == "7":
        os.kill(os.getpid(), signal.SIGKILL)
    return file.name

def ends_it_once(file, marker):
    if file.name == "7" and not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return file.name

def ends_the_scheduler(file, pid):
    os.kill(pid, signal.SIGKILL)

def needs_what_is_not_here(file):
    raise ModuleNotFoundError("No module named 'stepscope'")
"""

READ = """
from functools import partial
from pathlib import Path
import sys, work
from stepscope.core.errors import MissingError
from stepscope.traces.cluster import read_on_cluster
if __name__ == "__main__":
    try:
        found = read_on_cluster({work}, [Path(str(number)) for number in range(40)], scheduler={scheduler}, workers=2,
                                size_of=lambda _: 1, done=lambda _: None)
    except MissingError as error:
        sys.exit(error.what)
    print(len(found), [f"{{file}} {{type(each).__name__}}" for file, each in found.items() if not isinstance(each, str)])
"""


def _read(folder: Path, work: str, scheduler: str | None = None) -> subprocess.CompletedProcess[str]:
    """What 40 files of the module ``work`` come to, with workers of its own or those of a cluster."""
    (folder / "work.py").write_text(WORK)
    (folder / "read.py").write_text(READ.format(work=work, scheduler=repr(scheduler)))
    return subprocess.run([sys.executable, "read.py"], cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)},
                          capture_output=True, text=True, timeout=110, check=False)  # fmt: skip


@pytest.mark.long
def test_a_file_that_ends_its_readers_is_given_up_alone(tmp_path: Path) -> None:
    assert _read(tmp_path, "work.ends_its_worker").stdout.split("\n")[0] == "40 ['7 NotReadError']"


@pytest.mark.long
def test_what_a_lost_worker_was_reading_is_read_again(tmp_path: Path) -> None:
    done = _read(tmp_path, f"partial(work.ends_it_once, marker={str(tmp_path / 'ended')!r})")
    assert (tmp_path / "ended").exists()
    assert done.stdout.split("\n")[0] == "40 []"


@pytest.mark.long
@pytest.mark.parametrize(
    ("work", "said"),
    [
        (
            "partial(work.ends_the_scheduler, pid={pid})",
            "the connection to the scheduler is lost; 0 files had been read",
        ),
        ("work.needs_what_is_not_here", "the cluster's workers have no stepscope"),
    ],
)
def test_where_a_cluster_cannot_read_one_error_says_why(tmp_path: Path, work: str, said: str) -> None:
    (tmp_path / "work.py").write_text(WORK)
    with _serve(tmp_path, workers=1, processes=True, PYTHONPATH=str(tmp_path)) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        done = _read(tmp_path, work.format(pid=process.pid), f"tcp://{address}")
        process.communicate()
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"{said}\n")
