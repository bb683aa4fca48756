"""The step from which on a job runs slower: which, when, on which ranks and hosts, in what part."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.diaries import START_UNIX_NS, Planted, job, simulate, write_diary, write_record, write_samples

from stepscope.diagnose.jobs import EVERY_S, LiveVerdict, judge_job
from stepscope.records.finding import JobChange
from stepscope.results.job_change import job_change
from stepscope.store.layout import ProfileLayout


def change_of(folder: Path) -> JobChange | None:
    steps = job(folder).steps
    assert steps is not None
    return job_change(steps)


def simulated(folder: Path, slow: Planted, *, seed: int = 0, steps: int = 1000, at: int = 600) -> JobChange | None:
    simulate(write_record(folder), ranks=8, steps=steps, seed=seed, per_host=4, slow=slow, slow_from=at)
    return change_of(folder)


@pytest.mark.parametrize(
    ("slow", "ranks", "hosts"),
    [
        (Planted(ranks={5: 1.1}), (5,), ()),
        (Planted(hosts={1: 1.1}), (4, 5, 6, 7), ("node1",)),
        (Planted(hosts={0: 1.1, 1: 1.1}), (), ()),
    ],
    ids=["rank", "host", "all"],
)
def test_ranks_whose_own_time_changed_are_named(
    tmp_path: Path, slow: Planted, ranks: tuple[int, ...], hosts: tuple[str, ...]
) -> None:
    found = simulated(tmp_path, slow)
    assert found is not None
    assert found.step == pytest.approx(601, abs=20)
    assert (found.ranks, found.hosts, found.part) == (ranks, hosts, "backward")
    assert found.all_ranks == (not ranks)
    low, high = found.ratio.low, found.ratio.high
    assert low is not None
    assert high is not None
    assert 1.04 < low < found.ratio.value < high < 1.12
    begins = job(tmp_path).steps.diaries[0].whole_ns[: found.step - 1].sum()  # type: ignore[union-attr]
    assert found.unix_s == pytest.approx((START_UNIX_NS + begins) / 1e9)


def test_slower_transfer_is_of_no_rank_and_dated_by_samples(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    comm = np.r_[rng.normal(4, 0.2, 500), rng.normal(6, 0.2, 500)]
    for rank in range(2):
        path = write_diary(tmp_path, {"forward": rng.normal(10, 0.1, 1000), "comm": comm}, rank=rank, world_size=2)
        write_samples(path, [2.0**30] * 50)
    write_record(tmp_path)
    found = change_of(tmp_path)
    assert found is not None
    assert found.step == pytest.approx(501, abs=5)
    assert (found.ranks, found.part) == ((), "transfer")
    assert not found.all_ranks
    samples = job(tmp_path).steps.diaries[0].samples  # type: ignore[union-attr]
    assert found.unix_s == pytest.approx(np.interp(found.step, samples["step"], samples["unix_s"]))


@pytest.mark.parametrize("seed", range(5))
def test_no_change_is_told_of_a_job_that_runs_as_ever(tmp_path: Path, seed: int) -> None:
    assert simulated(tmp_path / "clean", Planted(), seed=seed) is None
    assert simulated(tmp_path / "always", Planted(ranks={3: 1.3}), seed=seed, at=0) is None


def test_a_change_is_news_once_and_only_one_for_the_worse(tmp_path: Path) -> None:
    now = [0.0]
    live = LiveVerdict(ProfileLayout(tmp_path), lambda: now[0])
    told = []
    for steps in (400, 700, 900, 1000):
        simulated(tmp_path, Planted(ranks={5: 1.15}), steps=steps)
        now[0] += 100 * EVERY_S
        judged = live.look()
        told.append(judged is not None and judged.verdict.change is not None)
    assert told[:2] in ([False, True], [False, False])
    assert sum(told) == 1
    simulate(tmp_path / "faster", ranks=2, steps=600, seed=0, slow={0: 0.7, 1: 0.7}, slow_from=300)
    write_record(tmp_path / "faster")
    judged = judge_job(tmp_path / "faster")
    assert judged is not None
    assert judged.verdict.change is not None
    assert judged.verdict.change.ratio.value == pytest.approx(0.75, abs=0.05)
    faster = LiveVerdict(ProfileLayout(tmp_path / "faster"), lambda: now[0])
    assert faster.look() is not None, "the first verdict"
    now[0] += 100 * EVERY_S
    assert faster.look() is None
