"""``stepscope watch`` of generated folders: one look at a job that runs, waits, stands still, has ended or has gone."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from tests.commands import Ran
from tests.diaries import START_UNIX_NS, Planted, planted, simulate, write_diary, write_record

from stepscope.cli import watch_run
from stepscope.store.layout import ProfileLayout

pytestmark = pytest.mark.usefixtures("fresh_consoles")


def look(ran: Ran, folder: Path, *more: object) -> dict[str, Any]:
    said = ran("watch", folder, "--json", *more)
    assert (said.code, said.err) == (0, "")
    found: dict[str, Any] = json.loads(said.out)
    return found


def ended(folder: Path, **end: Any) -> None:
    document = {"schema": "stepscope.job_end/1", "kind": "ok", "code": 0, **end}
    ProfileLayout(folder).end.write_text(json.dumps(document))


def test_ranks_phases_and_the_late_one(tmp_path: Path, ran: Ran) -> None:
    found = look(ran, planted(tmp_path))
    assert (found["state"], found["step"], found["ranks_seen"], found["world_size"]) == ("running", 200, 2, 2)
    late, waits = found["ranks"][1], found["ranks"][0]
    assert late["late"]
    assert not waits["late"]
    assert late["parts_ns"]["backward"] == pytest.approx(22e6)
    assert waits["parts_ns"]["waiting"] == pytest.approx(6e6)
    for each in found["ranks"]:
        assert sum(each["parts_ns"].values()) == pytest.approx(each["step_ns"])
    assert found["verdict"]["kind"] == "straggler"
    assert found["verdict"]["ranks"] == [1]
    assert [(each["step"], each["ranks"]) for each in found["events"]] == [(n, [0, 1]) for n in range(25, 201, 25)]
    assert found["throughput"]["now"] == pytest.approx(20 / (0.036 * 20 + 0.1), rel=0.01)
    said = ran("watch", tmp_path)
    assert said.code == 0
    assert "\r" not in said.out
    assert max(map(len, said.out.splitlines())) <= 80


def test_a_job_that_stands_still_names_who_is_behind(tmp_path: Path, ran: Ran) -> None:
    write_record(tmp_path)
    for rank, steps in enumerate((60, 60, 58)):
        path = write_diary(tmp_path, {"forward": [5.0] * steps, "comm": [1.0] * steps}, rank=rank, world_size=3)
        then = time.time() - 65
        os.utime(path, (then, then))
    found = look(ran, tmp_path)
    assert (found["state"], found["step"]) == ("silent", 58)
    assert 60 < found["silent_s"] < 600
    assert "rank 2 is behind: 58 of 60 steps" in found["said"]


def test_restarts_missing_ranks_and_a_torn_record(tmp_path: Path, ran: Ran) -> None:
    write_record(tmp_path)
    columns = {"forward": [5.0] * 40, "comm": [1.0] * 40}
    later = START_UNIX_NS + 60 * 10**9
    for rank in (0, 1):
        write_diary(tmp_path, columns, rank=rank, world_size=3)
        path = write_diary(
            tmp_path, columns, rank=rank, world_size=3, attempt=1, restart=1, start_unix_ns=later, pid=200 + rank
        )
    with path.open("ab") as file:
        file.write(b"torn in its record")
    found = look(ran, tmp_path)
    assert (found["ranks_seen"], found["world_size"], found["step"]) == (2, 3, 40)
    assert found["events"] == [
        {"at_unix_ns": later, "what": "restart 1 by the launcher", "step": None, "ranks": [0, 1], "ns": None}
    ]
    assert sum(found["throughput"]["steps_per_s"]) * 60.24 / len(found["throughput"]["steps_per_s"]) == pytest.approx(
        80
    )


def test_a_job_without_a_step_is_waited_for(tmp_path: Path, ran: Ran) -> None:
    found = look(ran, write_record(tmp_path))
    assert (found["state"], found["verdict"], found["ranks"]) == ("waiting", None, [])
    ProfileLayout(tmp_path).control.mkdir()
    (ProfileLayout(tmp_path).control / "diary-00000-0.bin").write_bytes(b'{"schema": ')
    assert look(ran, tmp_path)["state"] == "waiting"
    assert "no rank has made a step yet" in ran("watch", tmp_path).out


def test_the_page_renews_itself_until_the_job_ends(tmp_path: Path, ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    job, page = planted(tmp_path / "job"), tmp_path / "live.html"
    seen: list[str] = []

    def wait(*_: object) -> None:
        seen.append(page.read_text())
        ended(job)

    monkeypatch.setattr(watch_run._Looks, "wait", wait)
    said = ran("watch", job, "--html", page, "--every", "7")
    assert said.code == 0
    assert len(seen) == 1
    assert '<meta http-equiv="refresh" content="7.0">' in seen[0]
    assert 'http-equiv="refresh"' not in page.read_text()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_ctrl_c_leaves_and_the_job_goes_on(tmp_path: Path, ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(watch_run._Looks, "wait", wait)
    assert ran("watch", planted(tmp_path / "job"), "--html", tmp_path / "live.html").code == 0


def test_a_folder_that_goes_ends_it(tmp_path: Path, ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    job = planted(tmp_path / "job")
    monkeypatch.setattr(watch_run._Looks, "wait", lambda *_: shutil.rmtree(job))
    said = ran("watch", job, "--html", tmp_path / "live.html")
    assert said.code == 2
    assert "has been removed" in said.err


def test_what_is_no_job_is_refused(tmp_path: Path, ran: Ran) -> None:
    assert ran("watch", tmp_path / "none").code == 2
    assert "not a folder of a job" in ran("watch", tmp_path).err
    assert "--every" in ran("watch", planted(tmp_path / "job"), "--once", "--every", "3").err


@pytest.mark.parametrize(
    ("slow", "first"),
    [
        (Planted(hosts={2: 1.2}), ("host node2", 8)),
        (Planted(rails={3: 1.2}), ("rail 3", 12)),
        (Planted(ranks={41: 1.2}), ("rank 41", 1)),
    ],
)
def test_of_many_ranks_what_is_late_stands_first(tmp_path: Path, slow: Planted, first: tuple[str, int]) -> None:
    from stepscope.diagnose.rank_rows import BESIDE, rank_rows
    from stepscope.results.profiled_job import read_profiled_job

    simulate(write_record(tmp_path), ranks=96, steps=160, seed=1, per_host=8, slow=slow)
    job = read_profiled_job(tmp_path, last=100)
    assert job is not None
    assert job.steps is not None
    assert (job.steps.first, job.steps.steps) == (60, 100)
    rows = rank_rows(job.steps)
    assert (rows[0].name, rows[0].ranks, rows[0].late) == (*first, True)
    assert len(rows) == 1 + BESIDE + 1
    assert rows[-1].ranks == 96 - first[1]
