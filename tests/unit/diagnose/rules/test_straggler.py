"""Who the others wait for, in the timed steps of cells and in traces, and that a faster network does not help."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.bench_evidence import Made, bench, environment, made
from tests.borders import waited
from tests.diaries import step_table
from tests.trace_evidence import found, generated, quiet, skipped, traced

from stepscope.diagnose.engine import check, diagnose
from stepscope.diagnose.rules.exposed_communication import RULE as EXPOSED
from stepscope.diagnose.rules.straggler import RULE
from stepscope.records.finding import Finding, Skipped
from stepscope.records.trace_path import StragglerReport
from stepscope.report.views import step_budget
from stepscope.results.evidence import Evidence
from stepscope.results.slow_ranks import comparable_ranks, slow_ranks
from stepscope.stats.step_table import median_of_others
from stepscope.traces.job import analyse_job

SHARED = Path(__file__).parents[4].parent / "shared" / "data" / "traces"


def test_a_late_rank_is_named_before_the_communication_it_causes(tmp_path: Path) -> None:
    evidence = generated(tmp_path, world=4, steps=6, late={2: 900_000}, late_kind="compute")
    finding = found(RULE, evidence)
    assert finding.title.startswith("straggler: rank 2 is slower at the same work")
    assert finding.subject == "rank 2"
    assert finding.severity == "problem"
    (report,) = [trace.summary.stragglers for trace in evidence.traces if trace.summary.stragglers is not None]
    windows = [p.budget.parts.window_ns for p in evidence.traces[0].summary.ranks if p.budget is not None]
    saved = report.stragglers[0].saved_ns
    assert finding.stake_fraction == pytest.approx(saved * len(windows) / sum(windows)), "both say the same"
    assert any("faster network does not help" in a.text for a in finding.advice)
    assert any("--rank 2" in (a.command or "") for a in finding.advice)
    both = diagnose(evidence, rules=[EXPOSED, RULE]).findings
    assert both[0].rule == "straggler"


def test_a_chronic_one_on_a_named_host_can_be_left_out(tmp_path: Path) -> None:
    summary = generated(tmp_path, world=4, steps=6, late={2: 900_000}).traces[0].summary
    named = tuple(replace(p, facts=replace(p.facts, host=f"node{p.facts.rank}")) for p in summary.ranks)
    finding = found(RULE, traced(replace(summary, ranks=named)))
    assert finding.title.startswith("straggler: rank 2 on node2 ")
    assert any("exclude node2 from the job" in a.text for a in finding.advice)
    here = tuple(replace(p, facts=replace(p.facts, host="node0")) for p in summary.ranks)
    finding = found(RULE, traced(replace(summary, ranks=here)))
    assert not any("from the job" in a.text for a in finding.advice), "all ranks share that host"


def test_ranks_that_arrive_together_are_quiet(tmp_path: Path) -> None:
    said = quiet(RULE, generated(tmp_path, world=4, steps=6))
    assert "no straggler" in said


def test_too_few_waits_to_name_a_rank_are_no_finding_and_no_praise(tmp_path: Path) -> None:
    assert "cannot reach p < 0.05" in skipped(RULE, waited(tmp_path / "a", 0.06, steps=2, world=2))
    assert "3 steps of 4 ranks" in skipped(RULE, waited(tmp_path / "d", 0.06, steps=3))
    assert quiet(RULE, waited(tmp_path / "b", 0.04, steps=2, world=2))
    assert "2 steps of 2 ranks" in found(RULE, waited(tmp_path / "c", 0.2, steps=2, world=2)).evidence[-1]


def test_ranks_that_take_turns_in_traces_are_said_to(tmp_path: Path) -> None:
    assert "each time for a different rank" in found(RULE, waited(tmp_path, 0.2, steps=20)).title


def test_a_late_rank_that_costs_nothing_is_no_finding(tmp_path: Path) -> None:
    evidence = generated(tmp_path, world=4, steps=6, late={2: 900_000}, late_kind="compute")
    assert found(RULE, evidence).subject == "rank 2"
    summary = evidence.traces[0].summary
    assert summary.stragglers is not None
    free = tuple(replace(s, saved_ns=0) for s in summary.stragglers.stragglers)
    said = quiet(RULE, traced(replace(summary, stragglers=replace(summary.stragglers, stragglers=free))))
    assert "the others compute meanwhile" in said


@pytest.mark.parametrize(("steps", "advice"), [(3, "profile more steps"), (20, "uneven work between steps")])
def test_one_rank_that_is_mostly_last_is_not_said_to_change(tmp_path: Path, steps: int, advice: str) -> None:
    summary = generated(tmp_path, world=4).traces[0].summary
    text = "no certain straggler over 6 collectives: rank 1 is last in 99% of the skew"
    report = StragglerReport(
        stragglers=(), pattern="undecided", skew_ns=1, waiting_ns=10**12, instances=6, steps=steps, text=text
    )
    finding = found(RULE, traced(replace(summary, stragglers=report)))
    assert "different rank" not in finding.title
    assert finding.evidence[0] == text
    assert advice in finding.advice[0].text


@pytest.mark.shared_data
@pytest.mark.skipif(not SHARED.is_dir(), reason="the real traces are not beside this checkout")
def test_rank_7_of_the_real_dlrm_job_is_the_straggler() -> None:
    finding = found(RULE, traced(analyse_job(SHARED / "dlrm-v100-8rank")))
    assert finding.title.startswith("straggler: rank 7 ")
    assert "82%" in finding.evidence[0]


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
    assert found.title == "straggler: rank 2 on b takes 1.31x the others' time, who wait for it"
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


def slow_host(*ranks: int, factor: float, jitter: float = 0.0):
    """These ranks do everything ``factor`` times as long, each phase of a step by up to ``jitter`` more or less."""
    rng = random.Random(1)

    def own(which: int, step: int, phases: dict[str, float]) -> None:  # noqa: ARG001
        for part in phases:
            phases[part] *= (factor if which in ranks else 1.0) * (1 + rng.uniform(-jitter, jitter))

    return own


@pytest.mark.parametrize(("steps", "kind"), [(2, Skipped), (3, tuple), (8, tuple), (19, tuple), (20, tuple)])
@pytest.mark.parametrize("hosts", [("a", "b"), ("a", "a", "b", "b"), ("a", "b", "b", "b")])
def test_a_host_five_times_slower_is_named_from_three_steps_on(steps: int, kind: type, hosts: tuple[str, ...]) -> None:
    ranks = tuple(rank for rank, host in enumerate(hosts) if host == "b")
    cell = made("c", world_size=len(hosts), steps=steps, hosts=hosts, own=slow_host(*ranks, factor=5, jitter=0.1))
    outcome = RULE.check(bench(cell))
    assert isinstance(outcome, kind)
    if isinstance(outcome, tuple):
        (found,) = outcome
        assert " on b " in found.title
        assert found.stake_fraction == pytest.approx(4 / 5, abs=0.1)
        assert f"{len(ranks)} rank" in " ".join(found.evidence)


def test_a_host_that_is_steadily_last_is_named_before_a_clear_lead_once_chance_is_out() -> None:
    """A fifth longer, by steps that differ as much: four of two hosts' ranks may be so by chance, not five."""
    times = {
        n: comparable_ranks(
            made(
                "c", world_size=4, steps=n, hosts=("a", "a", "b", "b"), own=slow_host(2, 3, factor=1.35, jitter=0.09)
            ).result
        )
        for n in (4, 5)
    }
    assert [bool(each and slow_ranks(each)) for each in times.values()] == [False, True]


def test_few_steps_name_no_host_on_one_host_nor_a_rank_alone() -> None:
    for hosts in (("a", "a", "a", "a"), ("a", "a", "b", "b"), ()):
        cell = made("c", world_size=4, steps=8, hosts=hosts, own=slow_host(2, factor=5))
        assert isinstance(RULE.check(bench(cell)), Skipped)


def test_clean_hosts_whose_ranks_scatter_by_a_fifth_are_not_named() -> None:
    fired = 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        ranks, steps = (2, 4)[seed % 2], int(rng.integers(3, 20))
        own = 1e8 * (1 + rng.exponential(0.2, (1, ranks, steps)))
        times = step_table(
            own[0],
            dict.fromkeys(("data", "forward", "backward", "optimizer"), 0.2),
            hosts=("a", "b") if ranks == 2 else ("a", "a", "b", "b"),
        )
        fired += bool(slow_ranks(times))
    assert fired == 0


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


def test_clean_noise_of_few_ranks_never_fires() -> None:
    """A z-score over ranks would: over 200 noisy cells of 2 to 4 ranks nothing may be named."""
    fired = 0
    for seed in range(200):
        rng = random.Random(seed)

        def own(rank: int, step: int, phases: dict[str, float], rng: random.Random = rng) -> None:  # noqa: ARG001
            phases["backward_compute"] *= 1 + rng.gauss(0, 0.04)

        times = comparable_ranks(made("c", world_size=2 + seed % 3, steps=30, jitter=0, own=own).result)
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


def test_the_chart_shows_the_excess_of_the_finding() -> None:
    """Both as a share of the others' own time; of all ranks' own time it would be less with few ranks."""

    def own(rank: int, step: int, phases: dict[str, float]) -> None:  # noqa: ARG001
        phases["forward"] += 40.0 if rank == 1 else 0.0

    case = bench(made("c", world_size=2, steps=40, jitter=0, own=own))
    (chart,) = step_budget.stragglers_charts(case.cells)
    (finding,) = RULE.check(case)
    (per_cent,) = re.findall(r"takes \+(\d+)% in the median", chart.caption)
    assert f"{1 + int(per_cent) / 100:.2f}x" in finding.title


def given(folder: Path, *flop: float, operators: tuple[int, ...] = (100, 100, 100, 100)) -> Evidence:
    """Rank 2 of 4 computes longer in every step; the ranks' FLOP and operators a step."""
    (job,) = generated(folder, world=4, steps=6, late={2: 900_000}, late_kind="compute").traces
    ranks = tuple(
        replace(p, step_flop=n, step_operators=o) for p, n, o in zip(job.summary.ranks, flop, operators, strict=True)
    )
    return traced(replace(job.summary, ranks=ranks))


@pytest.mark.parametrize(
    ("flop", "what", "advice"),
    [
        ((1e9, 1e9, 1.4e9, 1e9), "does more work", "equal lengths"),
        ((1e9, 1e9, 1.01e9, 1e9), "is slower at the same work", "its clocks, its cores"),
        ((1e9, 1e9, 0.7e9, 1e9), "computes longer", "rebalance"),
        ((0, 0, 0, 0), "computes longer", "rebalance"),
    ],
)
def test_more_work_is_told_from_a_slow_machine(flop: tuple[float, ...], what: str, advice: str, tmp_path: Path) -> None:
    finding = found(RULE, given(tmp_path, *flop))
    assert what in finding.title
    assert advice in finding.advice[0].text


@pytest.mark.parametrize(
    ("world", "steps", "named"), [(2, 3, False), (2, 5, False), (2, 6, True), (4, 3, False), (4, 4, True)]
)
def test_a_clear_lead_in_few_steps_names_nobody_whom_chance_could(
    world: int, steps: int, named: bool, tmp_path: Path
) -> None:
    """Rank 1 is as late in all of them; ranks x (1 / ranks)^steps: 0.25, 0.0625, 0.03, 0.0625, 0.016."""
    job = generated(tmp_path, world=world, steps=steps, late={1: 900_000}, late_kind="compute")
    said = check(RULE, job)
    assert (isinstance(said, tuple) and said[0].ranks == (1,)) == named


def test_more_operators_are_more_work_too(tmp_path: Path) -> None:
    assert "does more work" in found(RULE, given(tmp_path, 1, 1, 1, 1, operators=(100, 100, 110, 100))).title


def planted(cell: Made, ranks: dict[int, dict[str, int]]) -> Made:
    """``cell`` with the times, ns, that its ranks lost to faults it was asked for."""
    summaries = tuple(replace(each, planted_ns=ranks.get(each.rank, {})) for each in cell.result.summaries)
    return replace(cell, result=replace(cell.result, summaries=summaries))


@pytest.mark.parametrize(("rank", "said"), [(2, True), (1, False)])
def test_a_planted_slow_rank_is_said_to_be_planted_and_another_is_not(rank: int, said: bool) -> None:
    """Rank 2 takes half as long again; the fault is planted in ``rank``."""
    plain = made("c", world_size=4, own=slower(2, 1.5), inject=f"slow_rank={rank}:50%")
    (found,) = findings(planted(plain, {rank: {"slow_rank": 48_000_000}}))
    assert found.ranks == (2,)
    assert (
        any("planted" in line and "48.0 ms" in line and f"slow_rank={rank}:50%" in line for line in found.evidence)
        is said
    )
    assert not any("planted" in line for line in findings(made("c", world_size=4, own=slower(2, 1.5)))[0].evidence)
