"""Ranks on two hosts with an sshd each, in namespaces of their own: one run folder, faults that are named, nothing left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from tests.ssh_hosts import obstacle, prepare_folder

from stepscope.records.cell import CellStatus
from stepscope.records.environment import EnvironmentRecord
from stepscope.records.samples import Heartbeat
from stepscope.store.layout import RunLayout
from stepscope.store.reader import read_record

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(600)]

PATIENCE_S = 240.0
CHECKOUT = str(Path(__file__).parents[2])


@pytest.fixture(scope="module", autouse=True)
def possible() -> None:
    if reason := obstacle():
        pytest.skip(reason)


class Hosts:
    """Two hosts; ``stepscope`` runs on the first."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.keys = folder, folder / "ssh-hosts"
        self.keys.mkdir()
        self.ssh = prepare_folder(self.keys, 2)
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *words: str, network: str = "1gbit:2") -> subprocess.Popen[str]:
        """``stepscope WORDS`` on host0."""
        line = [sys.executable, "-m", "tests.ssh_hosts", network, "2", str(self.keys), "--"]
        (self.keys / "command.pid").unlink(missing_ok=True)
        with (self.folder / "err").open("w") as err:
            self.started.append(
                subprocess.Popen(
                    [*line, sys.executable, "-m", "stepscope.cli", *words],
                    cwd=self.folder,
                    env={**os.environ, "PYTHONPATH": CHECKOUT, "COLUMNS": "160"},
                    stdout=subprocess.PIPE,
                    stderr=err,
                    text=True,
                )
            )
        return self.started[-1]

    def finish(self, running: subprocess.Popen[str]) -> tuple[int, str, str]:
        out, _ = running.communicate(timeout=PATIENCE_S)
        return running.returncode, out, (self.folder / "err").read_text()

    def run(self, *words: str, network: str = "1gbit:2") -> tuple[int, str, str]:
        return self.finish(self.start(*words, network=network))

    def comm(self, *words: str) -> list[str]:
        return ["comm", "--hosts", "host0,host1", "--ssh", str(self.ssh), "-o", "run", "--sizes", "4K,1M", *words]

    def wait(self, ready: Callable[[], bool]) -> None:
        limit = time.monotonic() + PATIENCE_S
        while not ready():
            assert time.monotonic() < limit, (self.folder / "err").read_text()
            time.sleep(0.1)

    def pid(self, name: str) -> int:
        self.wait(lambda: (self.keys / name).exists() and (self.keys / name).read_text() != "")
        return int((self.keys / name).read_text())

    def ranks(self) -> list[int]:
        """Process ids of the ranks, as they state them themselves."""
        found = sorted((self.folder / "run").glob("groups/*/heartbeat-*"))
        return [read_record(path, Heartbeat).pid for path in found]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.terminate()
            process.wait(30)
        if process.stdout is not None:
            process.stdout.close()


def gone(pids: Sequence[int]) -> bool:
    """Dead; whose launcher is dead, too, is a zombie until init looks."""
    return not any(p.pid in pids and p.status() != psutil.STATUS_ZOMBIE for p in psutil.process_iter())


def test_ranks_on_two_hosts_fill_one_run_folder(hosts: Hosts) -> None:
    code, out, err = hosts.run(*hosts.comm("--ops", "all_reduce", "--iters", "20", "--json"))
    assert code == 0, err
    rows = json.loads(out)["rows"]
    assert {(row["world_size"], row["hosts"], row["status"]) for row in rows} == {(2, 2, "ok")}
    layout = RunLayout(hosts.folder / "run")
    record = read_record(layout.environment, EnvironmentRecord)
    assert {name: each["interface"] for name, each in record.extra["hosts"].items()} == {
        "host0": "eth0",
        "host1": "eth0",
    }
    logs = sorted(path.relative_to(layout.groups).as_posix() for path in layout.groups.glob("*/logs/*/attempt_0/*"))
    assert [name.split("/")[2:] for name in logs] == [["host0", "attempt_0", "0"], ["host1", "attempt_0", "1"]]
    assert gone(hosts.ranks())


def test_a_host_that_dies_is_named_what_is_finished_is_kept_and_the_rest_runs_later(hosts: Hosts) -> None:
    words = hosts.comm("--ops", "all_reduce,broadcast", "--iters", "4000", "--budget", "60s")
    running = hosts.start(*words, "--sizes", "4K")
    hosts.wait(lambda: "[1/2]" in (hosts.folder / "err").read_text())
    hosts.wait(lambda: "broadcast float32, 2 ranks:" in (hosts.folder / "err").read_text())
    for process in psutil.Process(hosts.pid("sshd_1.pid")).children(recursive=True):
        process.kill()
    code, _, err = hosts.finish(running)
    assert code == 3
    error = err[err.rindex("error: ") :]
    assert "host1" in error
    assert "-o run" in error
    assert "1 of 2 cells is finished" in error
    layout = RunLayout(hosts.folder / "run")
    statuses = [read_record(path, CellStatus) for path in sorted(layout.root.glob("cells/*/status.json"))]
    assert [(status.status, status.failing_host) for status in statuses] == [("ok", None), ("error", "host1")]
    assert gone(hosts.ranks())
    code, _, err = hosts.run(*words, "--sizes", "4K")
    assert code == 0, err
    assert "1 cell to run, 1 kept from before" in err


def test_ctrl_c_ends_the_ranks_of_all_hosts(hosts: Hosts) -> None:
    running = hosts.start(*hosts.comm("--iters", "100000", "--budget", "200s"))
    hosts.wait(lambda: "measure" in (hosts.folder / "err").read_text())
    ranks = hosts.ranks()
    assert len(ranks) == 2
    assert not gone(ranks)
    os.kill(hosts.pid("command.pid"), signal.SIGINT)
    code, _, err = hosts.finish(running)
    assert code == 130, err
    hosts.wait(lambda: gone(ranks))


def test_a_host_that_asks_for_a_password_is_refused_at_once(hosts: Hosts) -> None:
    server = hosts.keys / "sshd_config_1"
    server.write_text(server.read_text().replace("PasswordAuthentication no", "PasswordAuthentication yes"))
    (hosts.keys / "user_key.pub").write_text("")
    code, out, err = hosts.run(*hosts.comm())
    assert (code, out) == (3, "")
    assert "host1 asks for a password" in err
    assert "ssh-copy-id host1" in err


def test_doctor_measures_the_link_between_two_hosts(hosts: Hosts) -> None:
    words = ["doctor", "--hosts", "host0,host1", "--ssh", str(hosts.ssh), "--json"]
    code, out, err = hosts.run(*words, network="1gbit:2,slow=1:100mbit")
    assert code == 0, err
    found = json.loads(out)
    rates = {pair["source"]: pair["bytes_per_s"] for pair in found["pairs"]}
    assert max(rates.values()) < 13e6  # what the link of host1 lets through
    assert not found["failed"]
    assert all(node["clock_error_ns"] > 0 for node in found["nodes"])
