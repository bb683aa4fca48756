"""Which verdicts on a running job are news."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.diaries import planted, simulate, write_diary, write_record, write_samples

from stepscope.diagnose.jobs import EVERY_S, FIRST_AT, LATEST, LiveVerdict, judge_job
from stepscope.store.layout import ProfileLayout


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def live(folder: Path) -> tuple[LiveVerdict, Clock]:
    clock = Clock()
    return LiveVerdict(ProfileLayout(folder), clock), clock


def test_the_first_verdict_comes_once_every_rank_has_made_enough_steps(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    watch, clock = live(folder)
    assert watch.look() is None, "no folder yet"
    planted(folder, steps=FIRST_AT - 1)
    clock.now += 1
    assert watch.look() is None
    shutil.rmtree(folder)
    planted(folder, steps=60)
    clock.now += 1
    found = watch.look()
    assert found is not None
    assert (found.verdict.kind, found.verdict.ranks) == ("straggler", (1,))
    clock.now += 2 * EVERY_S
    assert watch.look() is None, "the same again is no news"


def test_after_a_restart_steps_count_again(tmp_path: Path) -> None:
    folder = planted(tmp_path / "job", steps=60)
    write_diary(folder, {"whole": [20.0] * (FIRST_AT - 1)}, rank=1, world_size=2, attempt=10)
    watch, clock = live(folder)
    assert watch.look() is None
    write_diary(folder, {"whole": [20.0] * FIRST_AT}, rank=1, world_size=2, attempt=10)
    clock.now += 1
    assert watch.look() is not None


def test_a_change_is_told_once_it_stays(tmp_path: Path) -> None:
    folder = planted(tmp_path / "job", steps=60)
    watch, clock = live(folder)
    assert watch.look() is not None
    shutil.rmtree(folder)
    simulate(write_record(folder), ranks=2, steps=60, seed=1, data_ms=12.0)
    for told in (None, "input-bound", None):
        clock.now += EVERY_S / 2
        assert watch.look() is None, "it is not judged so often"
        clock.now += EVERY_S
        found = watch.look()
        assert (None if found is None else found.verdict.kind) == told


def test_a_job_that_cannot_be_read_now_is_read_later(tmp_path: Path) -> None:
    folder = planted(tmp_path / "job", steps=60)
    diary = next(iter(ProfileLayout(folder).diaries()))
    whole = diary.read_bytes()
    diary.write_bytes(b"{}\n" + whole)
    watch, clock = live(folder)
    assert watch.look() is None
    diary.write_bytes(whole)
    clock.now += 1
    assert watch.look() is not None
    assert judge_job(tmp_path) is None, "no job"


def test_a_long_job_is_judged_while_it_runs_by_its_last_steps(tmp_path: Path) -> None:
    folder = planted(tmp_path / "job", steps=LATEST + 1000)
    judged = live(folder)[0].look()
    whole = judge_job(folder)
    assert judged is not None
    assert whole is not None
    assert judged.verdict.steps_timed <= LATEST < whole.verdict.steps_timed
    assert judged.verdict.steps_made == whole.verdict.steps_made == LATEST + 1000


def test_memory_that_grows_is_news_once_and_again_where_it_is_full_soon(tmp_path: Path) -> None:
    folder = write_record(tmp_path / "job")
    path = write_diary(folder, {"forward": [50.0] * 300})
    look, clock = live(folder)
    told = []
    for samples, gib in ((5, 500.0), (15, 500.0), (20, 500.0), (30, 20.0), (31, 20.0)):
        write_samples(path, [2.0**30 + 2.0**20 * 20 * n for n in range(samples)], available=gib * 2**30)
        found = look.look()
        memory = None if found is None else found.verdict.memory
        told.append(None if memory is None else memory.line)
        clock.now += 60.0
    grows = "+1.0 MiB a step; host memory full in "
    assert told == ["1.08 GiB a rank", grows + "7 h", None, grows + "17 min", None]
