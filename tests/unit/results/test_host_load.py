"""Who takes the processors, and what loading needs of them: from samples to decisions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.diaries import write_diary, write_load

from stepscope.predict.loading import fewest_workers
from stepscope.records.profile import PROFILED
from stepscope.results.diary import JobSteps, job_steps
from stepscope.results.host_load import (
    HostLoad,
    computing_share,
    contention,
    contention_of,
    host_loads,
    loader_stake,
    loading_of,
)
from stepscope.store.diary import read_diaries
from stepscope.store.layout import ProfileLayout


def job(folder: Path, *, ranks: int = 2, data: float = 10.0, **columns: Any) -> JobSteps:
    """Two ranks on two cores that load for half of a step of 20 ms; columns: seconds a second of each rank."""
    for rank in range(ranks):
        parts = {"data": [data] * 60, "forward": [20.0 - data] * 60, "cpu": [10.0] * 60}
        write_diary(folder, parts, rank=rank, world_size=ranks, delay=0.0, threads=1, cores=2)
        write_load(folder, rank=rank, steps=60, **columns)
    found = job_steps(read_diaries(ProfileLayout(folder)))
    assert found is not None
    return found


def load(**known: float) -> HostLoad:
    return HostLoad(
        host="a", ranks=(0, 1), cores=2, seconds=9.0, **{"busy": 2.0, "own": 2.0, "workers": 0.0, "stepscope": 0.0, **known}
    )  # fmt: skip


@pytest.mark.parametrize(
    ("of", "job", "who"),
    [
        (load(), {}, ()),
        (load(own=1.0), {}, ("others",)),
        (load(own=1.0, stepscope=0.9), {}, ("stepscope",)),
        (load(own=0.9, stepscope=0.3), {}, ("others", "stepscope")),
        (load(own=1.9), {}, ()),
        (load(), {"ranks": 2, "threads": 2, "cores": 2}, ("threads",)),
        (load(own=1.5), {"ranks": 2, "threads": 2, "cores": 2}, ("threads", "others")),
        (load(workers=0.8), {"ranks": 2, "threads": 1, "cores": 2}, ("workers",)),
        (load(busy=1.2, own=1.2, workers=0.8), {}, ()),
        (None, {"ranks": 2, "threads": 1, "cores": 2}, ()),
        (None, {"ranks": 4, "threads": None, "cores": 2}, ()),
        (None, {"ranks": 2, "threads": 4, "cores": 4}, ("threads",)),
    ],
)
def test_contention_names_who_takes_the_processors(of: HostLoad | None, job: Any, who: tuple[str, ...]) -> None:
    assert tuple(each.who for each in contention(of, **job)) == who


def test_how_many_processors_are_taken(tmp_path: Path) -> None:
    (others,) = contention_of(job(tmp_path, busy_s=1.9, process_s=0.4, stepscope_s=0.05))
    assert (others.who, others.cores, others.host) == ("others", 2, "node0")
    assert others.takes == pytest.approx(1.9 - 0.8 - 0.05)


def test_a_host_of_which_one_rank_is_not_sampled_accuses_nobody(tmp_path: Path) -> None:
    steps = job(tmp_path, busy_s=1.9, process_s=0.4)
    (tmp_path / ".stepscope" / "load-00001-0.bin").unlink()
    assert [each.who for each in contention_of(steps)] == ["others"]
    assert contention_of(job_steps(read_diaries(ProfileLayout(tmp_path))) or steps) == ()


def test_ranks_that_are_pinned_apart_have_processors_of_their_own(tmp_path: Path) -> None:
    for rank in range(2):
        write_diary(tmp_path, {"forward": [20.0] * 60, "cpu": [10.0] * 60}, rank=rank, world_size=2, cores=1)
        write_load(tmp_path, rank=rank, steps=60, cpus=[rank], busy_s=1.0 if rank else 0.5, process_s=0.5)
    found = host_loads(job_steps(read_diaries(ProfileLayout(tmp_path))))  # type: ignore[arg-type]
    assert [(each.ranks, each.others, each.free) for each in found] == [((1,), 0.5, 0.0), ((0,), 0.0, 0.5)]


def test_loading_that_computes_gets_no_processor_that_others_use(tmp_path: Path) -> None:
    steps = job(tmp_path, busy_s=2.0, process_s=0.5, data_s=0.5, data_cpu_s=0.45)
    found = loading_of(steps)
    assert found is not None
    assert computing_share(steps) == pytest.approx(0.9)
    assert (found.cores, found.used_ns) == (pytest.approx(0.5), pytest.approx(10e6))
    assert fewest_workers(found) is None
    assert loader_stake(steps, share=0.5) == 0.5, "loading that costs nothing would return all of it"


def test_loading_that_sleeps_gets_a_share_of_them(tmp_path: Path) -> None:
    steps = job(tmp_path, data=12.0, busy_s=2.0, process_s=0.3, data_s=0.6, data_cpu_s=0.02)
    found = loading_of(steps)
    assert found is not None
    assert found.cores == pytest.approx(0.65)
    assert fewest_workers(found) == 2
    assert loader_stake(steps, share=0.6) == pytest.approx(1 - max(6.0 / 0.65, 8.24) / 20, rel=0.01)


def test_what_free_cores_can_hide_bounds_the_stake(tmp_path: Path) -> None:
    """15 ms of CPU time a step on 1 core a rank: 15 ms at least, whatever the waits are."""
    steps = job(tmp_path, busy_s=1.5, process_s=0.75, data_s=0.5, data_cpu_s=0.5)
    assert loader_stake(steps, share=0.5) == pytest.approx(0.25, rel=0.01)


def test_of_loaders_with_workers_these_say_how_much_they_compute(tmp_path: Path) -> None:
    steps = job(tmp_path, busy_s=1.9, process_s=0.3, workers_s=0.6, data_s=0.5, data_cpu_s=0.01)
    assert computing_share(steps, workers=1) == pytest.approx(0.6)
    assert computing_share(steps, workers=2) == pytest.approx(0.3)


def test_without_samples_nothing_is_known(tmp_path: Path) -> None:
    write_diary(tmp_path, {"data": [10.0] * 60, "forward": [10.0] * 60}, threads=2, cores=1)
    steps = job_steps(read_diaries(ProfileLayout(tmp_path)))
    assert steps is not None
    assert host_loads(steps) == ()
    assert computing_share(steps) is None
    found = loading_of(steps)
    assert found is not None
    assert (found.used_ns, found.cores) == (None, None)
    assert [each.who for each in contention_of(steps)] == ["threads"]


def test_profiled_steps_do_not_count(tmp_path: Path) -> None:
    """The window writes traces: what the processors do then is no load of the job."""
    write_diary(tmp_path, {"forward": [20.0] * 60, "cpu": [10.0] * 60}, flags=[0] * 30 + [PROFILED] * 30, cores=2)
    busy = np.where(np.arange(40) <= 20, 0.5, 2.0)
    write_load(tmp_path, steps=60, busy_s=busy, process_s=0.5)  # type: ignore[arg-type]
    (found,) = host_loads(job_steps(read_diaries(ProfileLayout(tmp_path))))  # type: ignore[arg-type]
    assert found.busy == pytest.approx(0.5)
