"""``doctor --quick`` with real ranks: one healthy check, and one that is interrupted."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest
from tests.e2e.runs import Cli, wait_for

pytestmark = pytest.mark.e2e


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith("stepscope-quick-")]


def test_two_ranks_train_for_some_seconds_and_leave_nothing(cli: Cli, tmp_path: Path) -> None:
    place = tmp_path / "tmp"
    place.mkdir()
    done = cli("doctor", "--quick", "--ranks", "2", "--json", TMPDIR=str(place))
    assert done.code == 0, done.err
    found = done.json()
    assert found["schema"] == "stepscope.doctor_quick/1"
    assert (found["world_size"], found["device"], found["backend"]) == (2, "cpu", "gloo")
    assert found["steps"] >= 20
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]
    assert all(rank["own_ns_median"] > 0 for rank in found["ranks"])
    assert found["collective"]["size_bytes"] == 4 * 4 * 512 * 512
    assert {check["title"] for check in found["checks"]} == {"training", "ranks", "collective", "threads"}
    assert found["checks"][0]["status"] == "pass"
    assert leftovers(place) == []
    assert not (tmp_path / "stepscope-runs").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_at_once_and_leaves_nothing(cli: Cli, tmp_path: Path, number: signal.Signals) -> None:
    place = tmp_path / "tmp"
    place.mkdir()
    process = cli.start("doctor", "--quick", TMPDIR=str(place))
    beat = wait_for(lambda: list(place.glob("stepscope-quick-*/run/cells/*/heartbeat-00001")), process)
    assert beat
    ranks = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert "nothing is left behind" in err
    assert out == ""
    assert leftovers(place) == []
    limit = time.monotonic() + 5
    while any(rank.is_running() and rank.status() != psutil.STATUS_ZOMBIE for rank in ranks):
        assert time.monotonic() < limit, "ranks are still running"
        time.sleep(0.05)
