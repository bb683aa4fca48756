from __future__ import annotations

import random

import numpy as np
import pytest
from tests.bench_evidence import bench, environment, made

from stepscope.diagnose.rules.slow_rank import RULE
from stepscope.records.finding import Finding, Quiet, Skipped
from stepscope.results.slow_ranks import median_of_others, own_times, slow_ranks


def slower(rank: int, factor: float, part: str = "backward_compute"):
    def own(which: int, step: int, phases: dict[str, float]) -> None:  # noqa: ARG001
        if which == rank:
            phases[part] *= factor

    return own


def findings(*cells) -> tuple[Finding, ...]:
    outcome = RULE.check(bench(*cells))
    assert isinstance(outcome, tuple), outcome
    return outcome


def test_a_rank_that_computes_longer_in_every_step_is_named_with_its_host_and_what_it_costs() -> None:
    cell = made("c", world_size=4, own=slower(2, 1.5), hosts=("a", "a", "b", "b"))
    (found,) = findings(cell)
    assert found.title == "rank 2 on b is 31% slower than the others, who wait for it"
    assert found.stake_fraction == pytest.approx(30 / 130, abs=0.01)
    assert found.severity == "problem"
    text = " ".join(found.evidence)
    assert "chronic: late in 40 of 40 steps" in text
    assert "in the backward pass" in text
    assert "2 ranks of 4 run on b" in text
    assert not any("sbatch" in str(a.command) for a in found.advice), "no scheduler is known"
    outcome = RULE.check(bench(cell, environment=environment(scheduler="slurm")))
    assert isinstance(outcome, tuple)
    assert "sbatch --exclude=b JOB" in [a.command for a in outcome[0].advice]


def test_even_ranks_are_quiet_and_the_largest_excess_is_told() -> None:
    outcome = RULE.check(bench(made("c", world_size=4, jitter=0.03)))
    assert isinstance(outcome, Quiet)
    assert "limit 5.0%" in outcome.looked_at


@pytest.mark.parametrize(("factor", "fires"), [(1.07, False), (1.10, True)])
def test_the_ratio_decides(factor: float, fires: bool) -> None:
    """60 of 97 ms are backward: 7% more of it are 4.3% of a rank's own time, 10% are 6.2%."""
    outcome = RULE.check(bench(made("c", world_size=2, own=slower(1, factor))))
    assert isinstance(outcome, tuple) is fires


@pytest.mark.parametrize(("steps", "kind"), [(19, Skipped), (20, tuple)])
def test_fewer_than_twenty_steps_say_nothing(steps: int, kind: type) -> None:
    assert isinstance(RULE.check(bench(made("c", own=slower(1, 2), steps=steps))), kind)


def test_what_makes_a_rank_slow_decides_the_advice() -> None:
    (found,) = findings(made("c", own=slower(1, 30, "data_wait")))
    assert "29.0 ms of it waiting for data" in found.evidence
    assert "its data arrives late" in found.advice[0].text


def test_with_two_ranks_it_says_that_slow_is_relative() -> None:
    (found,) = findings(made("c", world_size=2, own=slower(0, 1.5)))
    assert "slow only means slower than the other" in found.confidence


def test_ranks_that_take_turns_are_rotating() -> None:
    def own(rank: int, step: int, phases: dict[str, float]) -> None:
        if step % 4 == rank:
            phases["forward"] += 25

    (found,) = findings(made("c", world_size=4, own=own))
    assert "rotates" in found.title
    assert found.stake_fraction == pytest.approx(25 / 125, abs=0.02)


def test_single_accidents_are_one_off_and_cost_their_share_of_all_time() -> None:
    def own(rank: int, step: int, phases: dict[str, float]) -> None:
        if rank == 1 and step in (5, 25):
            phases["other"] += 400

    (found,) = findings(made("c", world_size=4, own=own))
    assert found.title.startswith("rank 1 on node-a was ")
    assert found.title.endswith(" late in 2 steps of 40")
    assert found.stake_fraction == pytest.approx(800 / (40 * 100 + 800), rel=0.03)


def test_a_small_accident_is_not_worth_a_word() -> None:
    def own(rank: int, step: int, phases: dict[str, float]) -> None:
        if rank == 1 and step == 5:
            phases["other"] += 150  # 3.6% of all step time

    assert isinstance(RULE.check(bench(made("c", world_size=4, own=own))), Quiet)


def test_clean_noise_of_few_ranks_never_fires() -> None:
    """A z-score over ranks would: over 200 noisy cells of 2 to 4 ranks nothing may be named."""
    fired = 0
    for seed in range(200):
        rng = random.Random(seed)

        def own(rank: int, step: int, phases: dict[str, float], rng: random.Random = rng) -> None:  # noqa: ARG001
            phases["backward_compute"] *= 1 + rng.gauss(0, 0.04)

        times = own_times(made("c", world_size=2 + seed % 3, steps=30, jitter=0, own=own).result)
        assert times is not None
        fired += bool(slow_ranks(times))
    assert fired == 0


def test_the_median_of_the_others_leaves_out_the_rank_itself() -> None:
    values = np.array([[1.0, 9.0], [2.0, 2.0], [4.0, 4.0], [8.0, 3.0]])
    expected = np.array([np.median(np.delete(values, r, axis=0), axis=0) for r in range(4)])
    assert median_of_others(values) == pytest.approx(expected)
    assert median_of_others(values[:3]) == pytest.approx(
        np.array([np.median(np.delete(values[:3], r, axis=0), axis=0) for r in range(3)])
    )
