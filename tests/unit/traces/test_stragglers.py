"""Who is waited for, and that nobody is named without evidence."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from tests.communications import Met, job
from tests.trace_builder import Job, build, write_job

from stepscope.records.trace_collectives import CollectiveGroup
from stepscope.records.trace_path import StragglerReport
from stepscope.traces.collectives import communication
from stepscope.traces.events import RankView
from stepscope.traces.load import load_traces
from stepscope.traces.stragglers import binomial_tail, find_stragglers
from stepscope.traces.waiting import job_collectives


def _report(folder: Path) -> StragglerReport:
    ranks = [communication(RankView(t)) for t in load_traces(folder).ranks]
    return find_stragglers(ranks, job_collectives(ranks))


def _of(met: list[Met]) -> StragglerReport:
    ranks = job(met)
    return find_stragglers(ranks, job_collectives(ranks))


def _noise(steps: int, world: int, *, seed: int, late: dict[int, int] | None = None) -> list[Met]:
    """One all_reduce a step; every rank's own time is 1 ms and noise, ``late`` adds to it."""
    rng = random.Random(seed)
    met, now = [], 0
    for step in range(steps):
        own = {r: 1_000_000 + rng.randrange(20_000) + (late or {}).get(r, 0) for r in range(world)}
        starts = {r: now + o for r, o in own.items()}
        now = max(starts.values()) + 100_000
        parts = {r: {"own_ns": o, "host_late": o - 1_000_000} for r, o in own.items()}
        met.append(Met(starts=starts, end=now, step=step, own=parts))
    return met


_PAIRS = {"tp0": (0, 1), "tp1": (2, 3), "dp0": (0, 2), "dp1": (1, 3)}


@pytest.mark.parametrize(
    ("at_least", "trials", "chance"), [(5, 8, 1 / 8), (0, 3, 0.5), (16, 16, 1 / 8), (3, 500, 0.01)]
)
def test_the_tail_is_the_binomials(at_least: int, trials: int, chance: float) -> None:
    from scipy.stats import binom  # takes a second, in every process that collects this file

    assert binomial_tail(at_least, [chance] * trials) == pytest.approx(
        float(binom.sf(at_least - 1, trials, chance)), rel=1e-9
    )


@pytest.mark.parametrize(
    ("kind", "cause"), [("compute", "more compute"), ("launch", "launch-bound"), ("data", "data"), ("sync", "sync")]
)
@pytest.mark.parametrize("sequence", [True, False])
def test_a_planted_late_rank_is_named_with_its_cause(tmp_path: Path, kind: str, cause: str, sequence: bool) -> None:
    planted = build(world=8, steps=4, late={6: 300_000}, late_kind=kind, sequence=sequence)
    found = _report(write_job(planted, tmp_path))
    assert [(s.rank, s.cause, s.kind) for s in found.stragglers] == [(6, cause, "chronic")]
    even = build(world=8, steps=4, late_kind=kind, sequence=sequence)
    assert found.stragglers[0].saved_ns == _end_ns(planted) - _end_ns(even)
    assert found.text.startswith("rank 6: last in")


def _end_ns(job: Job) -> int:
    return max(c.end_ns for c in job.collectives)


def test_a_slow_rank_costs_what_the_job_loses_however_many_buckets_carry_its_lateness(tmp_path: Path) -> None:
    """Eight buckets a step wait for the same lateness; it is one step longer by it, not eight times as much."""
    plan = {"world": 4, "steps": 6, "layers": 8, "forward_ns": 1_000_000, "backward_ns": 2_000_000}
    slow, even = build(**plan, slow={2: 1.2}), build(**plan)
    (found,) = _report(write_job(slow, tmp_path)).stragglers
    assert found.saved_ns == pytest.approx(_end_ns(slow) - _end_ns(even), rel=0.03)
    assert found.late_ns == pytest.approx(found.causes[0].excess_ns, rel=0.03)
    assert "6 independent waits in 48 collectives" in found.confidence


@pytest.mark.parametrize(("steps", "named"), [(3, False), (5, False), (6, True)])
def test_two_ranks_are_told_apart_by_six_steps_however_far_one_is_behind(
    steps: int, named: bool, tmp_path: Path
) -> None:
    """The collectives of a step are no independent trials: 2 x (1 / 2)^6 = 0.03."""
    plan = {"world": 2, "steps": steps, "layers": 4, "backward_ns": 900_000, "jitter": 0.005}
    found = _report(write_job(build(**plan, slow={1: 1.2}), tmp_path / "slow")).stragglers
    assert [(each.rank, each.p_value) for each in found] == ([(1, pytest.approx(2 * 0.5**6))] if named else [])
    assert _report(write_job(build(**plan), tmp_path / "even")).stragglers == ()


@pytest.mark.parametrize("world", [2, 4])
def test_noise_that_buckets_carry_along_within_a_step_names_nobody(tmp_path: Path, world: int) -> None:
    found = _report(write_job(build(world=world, steps=6, layers=8, backward_ns=900_000, jitter=0.02), tmp_path))
    assert found.stragglers == ()


def _in_two_groups(steps: int, *, seed: int, late: dict[int, int] | None = None) -> list[Met]:
    """The same lateness reaches collectives of two groups that run side by side."""
    groups = [CollectiveGroup(name=name, description="", size=2, ranks=(0, 1)) for name in ("dp", "fsdp")]
    met = [replace(m, own=None) for m in _noise(steps, 2, seed=seed, late=late)]
    return [replace(m, group=g, sequence=m.step) for m in met for g in groups]


@pytest.mark.parametrize(("other_steps", "named"), [(0, True), (1, False)])
def test_a_rank_is_late_by_whole_steps(other_steps: int, named: bool) -> None:
    """Rank 1 of 2 is last in all collectives of six steps, or of five, rank 0 in those of the sixth."""
    last, first = (_in_two_groups(6, seed=1, late={rank: 400_000}) for rank in (1, 0))
    met = [m for m in last if m.step not in range(other_steps)] + [m for m in first if m.step in range(other_steps)]
    assert bool(_of(met).stragglers) is named


def test_noise_in_two_groups_side_by_side_names_nobody() -> None:
    one = sum(bool(_of(_noise(6, 2, seed=seed)).stragglers) for seed in range(40))
    both = sum(bool(_of(_in_two_groups(6, seed=seed)).stragglers) for seed in range(40))
    assert both <= max(one, 2)


def test_lateness_within_a_pair_is_not_counted_again_between_pairs() -> None:
    """Rank 3 is late in every reduction with rank 2; both are then late, by the sum, for ranks 0 and 1."""
    met, now = [], 0
    pairs = {name: CollectiveGroup(name=name, description="", size=2, ranks=r) for name, r in _PAIRS.items()}
    for step in range(6):
        at = dict.fromkeys(range(4), now)
        for layer in range(4):
            for name in ("tp0", "tp1"):
                a, b = _PAIRS[name]
                starts = {a: at[a] + 1_000_000, b: at[b] + 1_000_000 + (200_000 if b == 3 else 0)}
                end = max(starts.values()) + 50_000
                met.append(Met(starts=starts, end=end, step=step, group=pairs[name], sequence=4 * step + layer))
                at[a] = at[b] = end
        for name in ("dp0", "dp1"):
            a, b = _PAIRS[name]
            starts = {a: at[a] + 10_000, b: at[b] + 10_000}
            end = max(starts.values()) + 300_000
            met.append(Met(starts=starts, end=end, step=step, group=pairs[name], sequence=step))
            at[a] = at[b] = end
        now = max(at.values())
    found = {s.rank: s for s in _of(met).stragglers}
    assert found[3].saved_ns == pytest.approx(23 * 200_000, rel=0.02)  # the first lies before its window


@pytest.mark.parametrize("device", ["gpu", "gloo"])
def test_an_even_job_names_nobody(tmp_path: Path, device: str) -> None:
    found = _report(write_job(build(world=4, steps=4, device=device), tmp_path))
    assert found.stragglers == ()
    assert found.pattern == "none"
    assert found.text.startswith("no straggler")


@pytest.mark.parametrize("world", [2, 4, 8])
@pytest.mark.parametrize("steps", [6, 40])
def test_noise_names_nobody(world: int, steps: int) -> None:
    named = sum(bool(_of(_noise(steps, world, seed=seed)).stragglers) for seed in range(40))
    assert named <= 4  # the level of the test is 5%, and the share of skew comes on top


@pytest.mark.parametrize("world", [2, 4])
def test_over_many_steps_one_late_rank_of_few_is_named(world: int) -> None:
    (s,) = _of(_noise(30, world, seed=3, late={1: 200_000})).stragglers
    assert (s.rank, s.rule, s.steps, s.cause) == (1, "steps", 30, "launch-bound")
    assert s.excess_ns == pytest.approx(200_000, rel=0.1)
    assert s.excess_low_ns > 150_000


def test_two_late_ranks_of_eight_are_both_named() -> None:
    rng = random.Random(5)
    met, now = [], 0
    for step in range(40):
        late = {2: 300_000 + rng.randrange(50_000), 5: 300_000 + rng.randrange(50_000)}
        own = {r: 1_000_000 + rng.randrange(5_000) + late.get(r, 0) for r in range(8)}
        starts = {r: now + o for r, o in own.items()}
        now = max(starts.values()) + 100_000
        met.append(Met(starts=starts, end=now, step=step, own={r: {"own_ns": o} for r, o in own.items()}))
    assert {s.rank for s in _of(met).stragglers} == {2, 5}


def test_less_than_a_twentieth_of_the_own_time_is_not_worth_a_name() -> None:
    assert _of(_noise(40, 4, seed=3, late={1: 30_000})).stragglers == ()


def test_lateness_that_moves_from_rank_to_rank_is_rotating_and_names_nobody() -> None:
    met, now = [], 0
    for step in range(8):
        starts = {r: now + (500_000 if r == step % 8 else 0) for r in range(8)}
        now += 1_500_000
        met.append(Met(starts=starts, end=now - 500_000, step=step))
    found = _of(met)
    assert (found.stragglers, found.pattern) == ((), "rotating")


def test_a_rank_that_is_last_nearly_always_is_not_said_to_change_over_too_few_waits() -> None:
    met = [
        Met(starts={last: now + late, 1 - last: now}, end=now + late + 500_000, step=step)
        for step, (now, late, last) in enumerate(
            [(0, 700_000, 1), (3_000_000, 100_000, 0), (6_000_000, 600_000, 1), (9_000_000, 650_000, 1)]
        )
    ]
    found = _of(met)
    assert (found.stragglers, found.pattern) == ((), "undecided")
    assert "rank 1 is last in 95% of the skew" in found.text


def test_one_long_pause_is_one_off_and_names_nobody() -> None:
    met, now = [], 0
    for step in range(10):
        starts = {r: now + (90_000_000 if (r, step) == (3, 4) else 1_000 * ((r + step) % 4)) for r in range(4)}
        now = max(starts.values()) + 100_000
        met.append(Met(starts=starts, end=now, step=step, op="all_gather"))
    found = _of(met)
    assert (found.stragglers, found.pattern) == ((), "one-off")
    assert "rank 3 last in it" in found.text


def test_without_a_second_rank_nothing_can_be_named(tmp_path: Path) -> None:
    folder = write_job(build(world=2, steps=2), tmp_path)
    (folder / "rank-1.json").unlink()
    found = _report(folder)
    assert found.stragglers == ()
    assert "no straggler can be named" in found.text
