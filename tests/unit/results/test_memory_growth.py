"""Memory that grows with every step is named with its rate; memory that levels off, saws or peaks is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.diaries import job, write_diary, write_record, write_samples

from stepscope.diagnose.jobs import judge_job
from stepscope.records.finding import JobMemory, JobVerdict
from stepscope.results.memory_growth import LEAST_SAMPLES, growth_of, job_memory

MIB = 2.0**20
STEPS_PER_S = 20.0
"""Of steps of 50 ms."""

Numbers = np.ndarray[tuple[int], np.dtype[np.float64]]


def sampled(count: int, rng: np.random.Generator) -> Numbers:
    """Steps at samples of a step of 50 ms, once a second and a little later."""
    return np.floor(np.cumsum(1.0 + rng.uniform(0.0, 0.01, count)) * STEPS_PER_S)


def levels_off(x: Numbers, rng: np.random.Generator) -> Numbers:
    """An allocator's warm-up: by up to 500 MiB, within up to a third of the job."""
    return np.asarray(rng.uniform(50, 500) * (1 - np.exp(-x / (rng.uniform(0.02, 0.3) * x[-1]))))


def fragments(x: Numbers, rng: np.random.Generator) -> Numbers:
    return np.asarray(rng.uniform(20, 200) * np.log1p(x / rng.uniform(5, 60)))


def first_evaluation(x: Numbers, rng: np.random.Generator) -> Numbers:
    return rng.uniform(50, 500) * (x > rng.uniform(0.1, 0.95) * x[-1])


def loader_starts(x: Numbers, rng: np.random.Generator) -> Numbers:
    """A cache that is filled, sample by sample, in the first part of the job."""
    return np.asarray(rng.uniform(100, 800) * np.minimum(x / (rng.uniform(0.1, 0.7) * x[-1]), 1))


def garbage(x: Numbers, rng: np.random.Generator) -> Numbers:
    period = rng.uniform(0.1, 0.5) * x[-1]
    return np.asarray(rng.uniform(20, 300) * ((x + rng.uniform(0, period)) % period) / period)


def checkpoints(x: Numbers, rng: np.random.Generator) -> Numbers:
    period = rng.uniform(0.05, 0.3) * x[-1]
    return rng.uniform(100, 900) * (x % period < rng.uniform(0.1, 0.5) * period)


def two_levels(x: Numbers, rng: np.random.Generator) -> Numbers:
    """A first evaluation and a first checkpoint, at any time."""
    return first_evaluation(x, rng) + first_evaluation(x, rng)


def flat(x: Numbers, rng: np.random.Generator) -> Numbers:
    return rng.normal(0.0, 3.0, x.size)


CLEAN = (levels_off, fragments, first_evaluation, loader_starts, garbage, checkpoints, two_levels, flat)


@pytest.mark.parametrize("samples", [12, 15, 60, 600, 2000])
@pytest.mark.parametrize("shape", CLEAN, ids=lambda each: each.__name__)
def test_no_clean_job_grows(shape: Callable[[Numbers, np.random.Generator], Numbers], samples: int) -> None:
    named = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        x = sampled(samples, rng)
        found = growth_of(x, MIB * (800 + rng.normal(0, 0.3, samples) + shape(x, rng)))
        named += [] if found is None else [(seed, found.value / MIB)]
    assert not named


@pytest.mark.parametrize(("samples", "start"), [(30, 0.33), (60, 0.5), (60, 0.7), (600, 0.85)])
def test_a_leak_that_begins_later_is_named_with_its_rate(samples: int, start: float) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        x = sampled(samples, rng)
        held = 800 + 200 * (1 - np.exp(-x / 20)) + rng.normal(0, 0.3, samples) + np.maximum(x - start * x[-1], 0)
        found = growth_of(x, MIB * held)
        assert found is not None
        assert found.value == pytest.approx(MIB, rel=0.05)


def planted(
    folder: Path,
    per_step: dict[int, float],
    *,
    available_gib: float = 220.0,
    hosts: dict[int, str] | None = None,
    ranks: int = 2,
    samples: int = 15,
    **columns: object,
) -> JobMemory:
    """Ranks of 800 MiB whose memory grows by so many MiB a step."""
    write_record(folder)
    for rank in range(ranks):
        path = write_diary(
            folder, {"forward": [50.0] * 300}, rank=rank, world_size=ranks, host=(hosts or {}).get(rank, "node0")
        )
        rng = np.random.default_rng(rank)
        held = [MIB * (800 + per_step.get(rank, 0.0) * 20 * n + rng.normal(0, 0.3)) for n in range(samples)]
        write_samples(path, held, available=available_gib * 2**30, **columns)
    steps = job(folder).steps
    assert steps is not None
    found = job_memory(steps)
    assert found is not None
    return found


def verdict(folder: Path) -> JobVerdict:
    found = judge_job(folder)
    assert found is not None
    return found.verdict


def test_which_rank_grows_and_when_its_host_is_full(tmp_path: Path) -> None:
    """220 GiB at 20 MiB a second: 3.1 hours."""
    (grows,) = planted(tmp_path, {1: 1.0}).growth
    assert (grows.of, grows.ranks, grows.host) == ("host", (1,), None)
    assert grows.per_step.value == pytest.approx(MIB, rel=0.1)
    assert grows.full_s == pytest.approx(220 * 1024 / 20, rel=0.1)
    found = verdict(tmp_path)
    assert found.kind == "computation-or-python"
    assert found.memory is not None
    assert found.memory.line == "+1.0 MiB a step on rank 1; host memory full in 3 h"
    assert "emory" not in found.headline, "it takes no step time"


def test_ranks_of_a_host_fill_it_together_and_the_first_host_counts(tmp_path: Path) -> None:
    hosts = {0: "n0", 1: "n0", 2: "n1", 3: "n1"}
    (grows,) = planted(tmp_path, {0: 1.0, 2: 1.0, 3: 3.0}, hosts=hosts, ranks=4).growth
    assert (grows.ranks[0], set(grows.ranks), grows.host) == (3, {0, 2, 3}, "n1")
    assert grows.full_s == pytest.approx(220 * 1024 / 80, rel=0.1)
    line = verdict(tmp_path).memory
    assert line is not None
    assert line.line.endswith("a step on rank 3, 0, 2; host memory of n1 full in 47 min")


def test_memory_that_is_full_within_the_hour_comes_first(tmp_path: Path) -> None:
    planted(tmp_path, {0: 1.0, 1: 1.0}, available_gib=60.0)
    assert verdict(tmp_path).headline.startswith("Memory leak: +1.0 ")
    assert verdict(tmp_path).headline.endswith("MiB a step on every rank; host memory full in 26 min")


def test_slow_growth_that_takes_months_is_steady(tmp_path: Path) -> None:
    """0.04% in 1,000 steps of 1 GiB: 160 B a second of 220 GiB would last."""
    write_record(tmp_path)
    path = write_diary(tmp_path, {"forward": [50.0] * 300})
    held = 20 * 2**30 + 2**13 * 20 * np.arange(200.0)
    write_samples(path, held.tolist(), available=float(2**40))
    steps = job(tmp_path).steps
    assert steps is not None
    found = job_memory(steps)
    assert found is not None
    assert (found.growth, found.steady) == ((), True)
    assert verdict(tmp_path).memory == JobMemory(host_bytes=held[-1], steady=True, line="20.0 GiB a rank, steady")


def test_pages_of_files_that_are_read_are_no_leak(tmp_path: Path) -> None:
    read = [MIB * 20 * n for n in range(15)]
    assert planted(tmp_path, {0: 1.0, 1: 1.0}, shared=read).growth == ()


def test_a_device_fills_by_what_is_allocated(tmp_path: Path) -> None:
    allocated = np.asarray([2**30 + MIB * 20 * n for n in range(15)])
    found = planted(tmp_path, {}, allocated=allocated, reserved=4.0 * 2**30, device=80.0 * 2**30)
    (grows,) = found.growth
    assert (grows.of, set(grows.ranks)) == ("device", {0, 1})
    assert grows.full_s == pytest.approx(76 * 1024 / 20, rel=0.1)
    told = verdict(tmp_path).memory
    assert told is not None
    assert told.line == "+1.0 MiB a step of device memory on every rank; device memory full in 65 min"


def test_a_kill_for_want_of_memory_names_the_growth(tmp_path: Path) -> None:
    from stepscope.records.profile import JobEnd
    from stepscope.store.layout import ProfileLayout
    from stepscope.store.writer import write_record as write

    planted(tmp_path, {1: 1.0}, available_gib=1.0)
    write(
        ProfileLayout(tmp_path).end, JobEnd(kind="out-of-memory", code=137, ranks=(1,), world_size=2, signal="SIGKILL")
    )
    told = verdict(tmp_path).headline
    assert told.startswith("Out of memory: rank 1 was killed by the kernel")
    assert told.endswith("; until then +1.0 MiB a step on rank 1")


def test_few_samples_say_how_much_and_no_trend(tmp_path: Path) -> None:
    found = planted(tmp_path, {}, samples=LEAST_SAMPLES - 1)
    assert (found.growth, found.steady) == ((), False)
    told = verdict(tmp_path).memory
    assert told is not None
    assert told.line == "800 MiB a rank"
