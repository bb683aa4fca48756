"""The grader of the planted jobs: what is right, what is false, what a stake may miss."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest
from benchmarks.own_jobs.grading import Said, SaidCost, false_statements, grade, read_said, stake_ok
from benchmarks.own_jobs.planted import JOBS, PLANTED, Planted
from benchmarks.own_jobs.truth import Truth, share_of_blocks, share_of_events, step_seconds

SLOW = Planted(name="slow", shape="DDP", verdicts=("straggler",), ranks=(1,), may_say=("straggler",))
CLEAN = Planted(name="clean_x", shape="DDP", verdicts=("compute-bound",), must_not_say=(r"num_workers",))
TRUTH = Truth(code=0, out="loss 1\nloss 2\n", step_s=0.01, low=0.20, high=0.20)


def _grade(job: Planted, said: Said, *, contended: bool = False, out: str = "loss 2\nloss 1\n") -> Any:
    return grade(job, TRUTH, said, code=0, out=out, contended=contended)


def _cost(kind: str, share: float = 0.2, ranks: tuple[int, ...] = (), stake: float | None = None) -> SaidCost:
    return SaidCost(kind=kind, share=share, ranks=ranks, stake=stake)


def test_the_kind_and_the_rank_make_a_verdict_right() -> None:
    assert _grade(SLOW, Said(kind="straggler", ranks=(1,), stake=0.21)).right
    assert not _grade(SLOW, Said(kind="straggler", ranks=(0,), stake=0.21)).right
    assert not _grade(SLOW, Said(kind="straggler", ranks=(0, 1), stake=0.21)).right
    assert not _grade(SLOW, Said(kind="compute-bound", ranks=(1,))).right
    assert not _grade(SLOW, Said(kind=None)).right


def test_on_a_contended_machine_the_next_cost_counts() -> None:
    said = Said(
        kind="contended-machine", stake=0.4, costs=(_cost("contended-machine"), _cost("straggler", 0.2, (1,), 0.19))
    )
    quiet, busy = _grade(SLOW, said), _grade(SLOW, said, contended=True)
    assert not quiet.right
    assert quiet.false == ("contended-machine 20%",)
    assert (busy.right, busy.stake_ok, busy.false) == (True, True, ())
    alone = _grade(SLOW, Said(kind="contended-machine", costs=(_cost("contended-machine"),)), contended=True)
    assert not alone.right
    assert _grade(CLEAN, Said(kind="contended-machine", costs=(_cost("contended-machine"),)), contended=True).right


@pytest.mark.parametrize(
    ("low", "high", "stake", "ok"),
    [
        (0.20, 0.20, 0.16, True), (0.20, 0.20, 0.155, False), (0.20, 0.20, 0.24, True), (0.20, 0.20, 0.25, False),
        (0.05, 0.05, 0.031, True), (0.05, 0.05, 0.071, False), (0.10, 0.40, 0.25, True), (0.10, 0.40, 0.49, False),
        (0.20, 0.20, None, False), (None, None, 0.3, None),
    ],
)  # fmt: skip
def test_a_stake_may_miss_by_a_fifth_or_two_points(
    low: float | None, high: float | None, stake: float | None, ok: bool | None
) -> None:
    assert stake_ok(Truth(code=0, out="", step_s=None, low=low, high=high), stake) is ok


def test_costs_findings_advice_and_headlines_that_cannot_be_are_false() -> None:
    said = Said(
        kind="straggler", ranks=(0,), costs=(_cost("straggler", 0.11), _cost("host-bound", 0.3)), headline="101 % of it",
        findings=(("clock-skew", "clocks differ"),), advice=("set pin_memory=True", "num_workers=4", "fewer GPUs"),
    )  # fmt: skip
    assert list(false_statements(CLEAN, said, contended=False)) == [
        "straggler 11%", "host-bound 30%", "clock-skew: clocks differ", "advice: num_workers", "advice: pin_memory",
        "advice: GPUs", "headline: 101 %",
    ]  # fmt: skip
    assert _grade(CLEAN, said).accused
    assert not _grade(SLOW, said).accused
    assert list(false_statements(SLOW, Said(kind="hang"), contended=False)) == ["hang"]


def test_output_and_exit_code_are_those_of_the_job_alone() -> None:
    assert _grade(CLEAN, Said(kind="compute-bound")).job_equal
    assert not _grade(CLEAN, Said(kind="compute-bound"), out="loss 1\nloss 2\nverdict\n").job_equal
    assert not grade(CLEAN, TRUTH, Said(kind="compute-bound"), code=1, out=TRUTH.out, contended=False).job_equal


def test_without_a_verdict_the_first_finding_stands_for_it() -> None:
    info = {"severity": "info", "rule": "good", "title": "good", "advice": []}
    found = {
        "severity": "warning", "rule": "straggler", "title": "rank 1 is late", "stake_fraction": 0.2, "ranks": [1],
        "advice": [{"text": "look at rank 1"}],
    }  # fmt: skip
    said = read_said(None, {"findings": [info, found]})
    assert (said.kind, said.ranks, said.stake, said.headline) == (None, (1,), 0.2, "rank 1 is late")
    assert said.findings == (("straggler", "rank 1 is late"),)
    assert read_said(None, {}).findings == ()


def test_a_step_is_that_of_the_slowest_rank_after_the_warm_up() -> None:
    warm = [0.5 * step for step in range(20)]
    even = [*warm, *(100 + 0.010 * step for step in range(41))]
    events = [*warm, *(100 + 0.011 * step + (0.5 if step > 20 else 0) for step in range(41))]
    assert step_seconds([even, events], mean=False) == pytest.approx(0.011)
    assert step_seconds([even, events], mean=True) == pytest.approx(0.011 + 0.5 / 40)
    assert step_seconds([[1.0, 2.0, 3.0]], mean=False) == 1.0
    assert step_seconds([[1.0], []], mean=False) is None


def _ends(seconds: Callable[[int], float], steps: int = 101) -> list[float]:
    """Ends of steps 0 to ``steps - 1``, of such a length each."""
    return list(accumulate(seconds(step) for step in range(steps)))


def test_a_fault_that_comes_and_goes_is_measured_within_one_run() -> None:
    def slow(step: int) -> float:  # the machine becomes slower, the fault takes a third of the step all the time
        settling = 0.1 if step % 10 < 2 else 0.0
        return (0.015 if step // 10 % 2 == 0 else 0.010) + settling

    assert share_of_blocks([_ends(lambda _: 0.010), _ends(slow)]) == pytest.approx(1 / 3)
    assert share_of_blocks([_ends(slow, steps=25)]) is None


def test_what_events_take_is_what_their_steps_take_more() -> None:
    found = share_of_events([_ends(lambda step: 0.010 + (0.090 if (step + 1) % 25 == 0 else 0)), [1.0, 2.0]], 25)
    assert found == pytest.approx(1 - 0.010 / (0.010 + 0.090 * 4 / 80), rel=0.05)
    assert share_of_events([[1.0, 2.0]], 25) is None


def test_every_planted_job_has_its_script_and_a_name_of_its_own() -> None:
    assert len({job.name for job in PLANTED}) == len(PLANTED) >= 24
    for job in PLANTED:
        text = (JOBS / f"{job.script or job.name}.py").read_text()
        known = "--alternate --clean" if "faulty(" in text else text
        assert [way for way in (*job.without, *job.arguments) if way not in text and way not in known] == [], job.name
        assert not job.every or f"step % {job.every} == 0" in text
        assert set(job.ranks) < set(range(max(job.torchrun, 1)))
