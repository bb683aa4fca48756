"""The verdict on planted jobs: kind, rank, share and stake; on clean ones: none."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.diaries import simulate, write_diary, write_gpu, write_load
from tests.diaries import write_record as profile_record

from stepscope.diagnose.costs import _ordered_costs, _returned_share, _tiny_operators, causes_of
from stepscope.diagnose.narrator import below, cost_line, faster, percent
from stepscope.diagnose.verdict import FEW_STEPS, Judged, borne_out, judge
from stepscope.records.finding import Diagnosis, Finding, JobVerdict, TimeCost, VerdictPart
from stepscope.records.nouns import Estimate
from stepscope.records.profile import PROFILED, HookedRank, JobEnd
from stepscope.records.trace_path import Straggler, StragglerReport
from stepscope.records.trace_summary import TraceSummary
from stepscope.results.open import load_evidence
from stepscope.results.slow_ranks import Slow
from stepscope.store.layout import ProfileLayout
from stepscope.store.writer import write_record

NOTHING = Diagnosis(findings=(), skipped=(), quiet=())


def judged_of(folder: Path, findings: Sequence[Finding] = ()) -> Judged:
    record = {"command": ["train"], "folder": ".", "host": "node0", "first": None, "argv": []}
    (folder / "profile.json").write_text(json.dumps({"schema": "stepscope.profile/1", **record}))
    found = judge(load_evidence([folder]), Diagnosis(findings=tuple(findings), skipped=(), quiet=()))
    assert found is not None
    return found


def verdict_of(folder: Path, findings: Sequence[Finding] = ()) -> JobVerdict:
    return judged_of(folder, findings).verdict


def of_window(rule: str, stake: float, **more: Any) -> Finding:
    return Finding(
        rule=rule, severity="problem", title=f"{rule} of the window", evidence=("a size of the window",),
        stake_fraction=stake, confidence="measured", job="job", **more,
    )  # fmt: skip


PLANTED: Sequence[tuple[str, Mapping[str, Any], float]] = (
    ("input-bound", {"data_ms": 8.0}, 8 / 21.5),
    ("communication-bound", {"transfer_ms": 6.0}, 6 / 19.2),
    ("optimizer-bound", {"optimizer_ms": 9.0}, 9 / 21.7),
    ("straggler", {"slow": {1: 1.25}}, 3 / 16.7),
    ("contended-machine", {"delay": 0.3}, 0.3),
    ("computation-or-python", {}, 0.0),
)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    ("kind", "planted", "stake"), PLANTED, ids=lambda value: value if isinstance(value, str) else ""
)
def test_planted_cause_is_the_verdict(
    tmp_path: Path, kind: str, planted: Mapping[str, Any], stake: float, ranks: int
) -> None:
    for seed in range(3):
        folder = tmp_path / str(seed)
        simulate(folder, ranks=ranks, steps=150, seed=seed, **planted)
        found = verdict_of(folder)
        assert found.kind == kind
        assert found.ranks == ((1,) if kind == "straggler" else ())
        if planted:
            assert found.stake_fraction == pytest.approx(stake, rel=0.2)


@pytest.mark.parametrize(("optimizer_ms", "told"), [(14.0, ["optimizer-bound"]), (1.0, ["memory-bound"])])
def test_kernels_of_the_optimizer_are_told_once(tmp_path: Path, optimizer_ms: float, told: list[str]) -> None:
    """Half of the window moves memory; where the optimizer takes half of the timed step, it is that."""
    simulate(tmp_path, ranks=1, steps=100, seed=5, optimizer_ms=optimizer_ms)
    moves = Finding(
        rule="memory-bandwidth-bound", severity="problem", title="-", evidence=(), confidence="-", stake_fraction=0.52
    )
    assert [cost.kind for cost in verdict_of(tmp_path, [moves]).costs] == told


def test_clean_jobs_have_no_cost(tmp_path: Path) -> None:
    wrong = []
    for seed in range(60):
        folder = tmp_path / str(seed)
        simulate(folder, ranks=(1, 2, 4)[seed % 3], steps=80, seed=1000 + seed, noise=0.05)
        found = verdict_of(folder)
        wrong += [(seed, cost.kind) for cost in found.costs]
    assert not wrong


def test_parts_of_the_tree_sum_to_the_step_and_stakes_to_at_most_it(tmp_path: Path) -> None:
    simulate(tmp_path, ranks=2, steps=100, seed=4, data_ms=9.0, transfer_ms=6.0, slow={0: 1.5}, delay=0.4)
    found = verdict_of(tmp_path)

    def sums(part: VerdictPart) -> None:
        if part.parts:
            assert sum(each.ns for each in part.parts) == pytest.approx(part.ns, rel=1e-6)
            for each in part.parts:
                sums(each)

    for part in found.tree:
        sums(part)
    assert sum(part.share for part in found.tree) == pytest.approx(1.0, abs=1e-6)
    assert len(found.costs) >= 3
    assert sum(cost.stake_fraction or 0.0 for cost in found.costs) <= 1.0 + 1e-9


def test_slow_loader_of_one_rank_is_a_straggler_and_no_input_bound_job(tmp_path: Path) -> None:
    for rank in range(2):
        wait = 6.0 * rank
        columns = {"data": [0.2 + wait] * 60, "forward": [8.0] * 60, "comm": [7.0 - wait] * 60, "cpu": [8.0] * 60}
        write_diary(tmp_path, columns, rank=rank, world_size=2, delay=0.0)
    found = verdict_of(tmp_path)
    assert (found.kind, found.ranks) == ("straggler", (1,))
    assert [cost.kind for cost in found.costs].count("input-bound") == 0


@pytest.mark.parametrize(("workers", "kind"), [(1, "input-bound"), (0, "straggler")])
def test_of_loaders_that_work_ahead_one_rank_alone_seems_to_wait(tmp_path: Path, workers: int, kind: str) -> None:
    for rank, data in enumerate((16.0, 2.5)):
        columns = {"data": [data] * 60, "forward": [8.0] * 60, "comm": [18.0 - data] * 60, "cpu": [8.0] * 60}
        write_diary(tmp_path, columns, rank=rank, world_size=2, delay=0.0)
    hooked = HookedRank(
        rank=0, world_size=2, host="node0", pid=1, restart=0, python="3.11", torch="2.13", local_rank="0",
        facts={"loaders": {"first": {"num_workers": workers}}},
    )  # fmt: skip
    layout = ProfileLayout(tmp_path)
    layout.control.mkdir(exist_ok=True)
    write_record(layout.control / "rank-00000.json", hooked)
    assert verdict_of(tmp_path).kind == kind


def test_what_all_steps_refute_is_no_finding(tmp_path: Path) -> None:
    simulate(tmp_path, ranks=2, steps=100, seed=7)
    record = {"command": ["train"], "folder": ".", "host": "node0", "first": None, "argv": []}
    (tmp_path / "profile.json").write_text(json.dumps({"schema": "stepscope.profile/1", **record}))
    window = Finding(
        rule="straggler", severity="problem", title="rank 0 is late", evidence=(), stake_fraction=0.3, confidence="x"
    )
    found = judge(load_evidence([tmp_path]), Diagnosis(findings=(window,), skipped=(), quiet=()))
    assert found is not None
    assert found.verdict.kind == "computation-or-python"
    assert found.diagnosis.findings == ()
    assert [each.rule for each in found.diagnosis.quiet] == ["straggler"]


def test_a_stake_of_the_window_is_sized_by_all_steps(tmp_path: Path) -> None:
    simulate(tmp_path, ranks=1, steps=100, seed=2, data_ms=8.0)
    record = {"command": ["train"], "folder": ".", "host": "node0", "first": None, "argv": []}
    (tmp_path / "profile.json").write_text(json.dumps({"schema": "stepscope.profile/1", **record}))
    window = Finding(
        rule="data-loading", severity="problem", title="t", evidence=(), stake_fraction=0.6, confidence="x"
    )
    found = judge(load_evidence([tmp_path]), Diagnosis(findings=(window,), skipped=(), quiet=()))
    assert found is not None
    assert found.diagnosis.findings[0].stake_fraction == pytest.approx(8 / 21, rel=0.05)


def test_percentages_carry_their_half_width() -> None:
    assert percent(Estimate(value=0.38, low=0.36, high=0.4)) == "38% (±2)"
    assert percent(Estimate(value=0.38)) == "38%"


def test_stakes_are_never_printed_with_an_exponent() -> None:
    assert [faster(stake) for stake in (0.375, 0.5, 0.89, 0.9, 0.997, 1.0)] == [
        "up to 1.6x faster", "up to 2x faster", "up to 9.1x faster", *["more than 10x faster"] * 3,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("low", "high", "kept"), [(0.1, 0.52, False), (0.0, 0.3, False), (0.12, 0.26, True), (None, None, True)]
)
def test_a_share_whose_interval_holds_nothing_is_no_cost(low: float | None, high: float | None, kept: bool) -> None:
    """18 %, printed with the wider half of its interval."""
    sure = TimeCost(kind="checkpointing", share=Estimate(value=0.06, low=0.05, high=0.07), stake_fraction=0.06)
    cost = TimeCost(kind="input-bound", share=Estimate(value=0.18, low=low, high=high), stake_fraction=0.18)
    assert [each.kind for each in _ordered_costs([sure, cost])] == ["input-bound"] * kept + ["checkpointing"]


@pytest.mark.parametrize(("count", "costs"), [(2, []), (3, ["evaluation"])])
def test_an_event_is_a_cost_from_the_third_on(tmp_path: Path, count: int, costs: list[str]) -> None:
    at = [20 * n for n in range(2, 2 + count)]
    events = [{"kind": "evaluation", "step": step, "at_ns": 0, "ns": 300_000_000} for step in at]
    outside = [300.0 if step in at else 0.0 for step in range(1, 101)]
    write_diary(tmp_path, {"forward": [10.0] * 100, "outside": outside}, events=events)
    found = verdict_of(tmp_path)
    assert [cost.kind for cost in found.costs] == costs
    assert any(note.startswith("evaluation") for note in found.notes) is not bool(costs)


@pytest.mark.parametrize(
    ("kind", "named", "stake"), [("inference", "inference", None), ("loader_start", "worker-start", 0.5)]
)
def test_rollouts_and_workers_that_start_are_called_so(
    tmp_path: Path, kind: str, named: str, stake: float | None
) -> None:
    """150 ms before every 16th step of 10 ms."""
    at = range(16, 161, 16)
    events = [{"kind": kind, "step": step, "at_ns": 0, "ns": 150_000_000, "count": 16} for step in at]
    outside = [150.0 if step in at else 0.0 for step in range(1, 161)]
    write_diary(tmp_path, {"forward": [10.0] * 160, "outside": outside}, events=events)
    found = verdict_of(tmp_path)
    (cost,) = found.costs
    assert (found.kind, cost.kind, cost.period, cost.of) == (named, named, 16, "wall")
    assert cost.share.value == pytest.approx(0.5, rel=0.05)
    assert cost.stake_fraction == (None if stake is None else pytest.approx(stake, rel=0.05))


def test_a_teacher_is_no_input_and_a_part_of_the_computation(tmp_path: Path) -> None:
    columns = {"data": [0.1] * 60, "before": [0.5] * 60, "inference": [20.0] * 60, "forward": [20.0] * 60}
    write_diary(tmp_path, {**columns, "cpu": [40.5] * 60, "before_cpu": [20.5] * 60}, delay=0.0)
    found = verdict_of(tmp_path)
    assert [(cost.kind, cost.stake_fraction) for cost in found.costs] == [("inference", None)]
    assert found.costs[0].share.value == pytest.approx(20 / 40.6)
    (computation,) = (part for part in found.tree if part.key == "computation")
    assert computation.ns == pytest.approx(40.5e6, rel=1e-6)
    assert [part.key for part in computation.parts if part.cause] == ["inference"]


@pytest.mark.parametrize(
    ("before_cpu", "delay", "kind"),
    [
        (None, 0.0, "before-forward"),
        (12.0, 0.0, "before-forward"),
        (2.0, 0.0, "input-bound"),
        (2.0, 0.25, "before-forward"),
    ],
)
def test_before_the_forward_pass_is_input_only_where_the_loop_waits(
    tmp_path: Path, before_cpu: float | None, delay: float, kind: str
) -> None:
    """It waits where it neither computes nor is ready to: with a quarter of the step without a processor nobody knows."""
    columns: dict[str, Sequence[float]] = {"before": [12.0] * 60, "forward": [28.0] * 60, "cpu": [30.0] * 60}
    if before_cpu is not None:
        columns["before_cpu"] = [before_cpu] * 60
    write_diary(tmp_path, columns, delay=delay)
    costs = [cost for cost in verdict_of(tmp_path).costs if cost.kind != "contended-machine"]
    assert [(cost.kind, cost.rules) for cost in costs] == [(kind, ("before",))]


def test_computation_and_python_are_told_apart_by_a_window_or_a_busy_device(tmp_path: Path) -> None:
    for name, busy, kind in (("gpu", 0.97, "compute-bound"), ("idle", 0.4, "computation-or-python")):
        folder = tmp_path / name
        write_diary(folder, {"forward": [10.0] * 60, "cpu": [10.0] * 60}, delay=0.0)
        write_gpu(folder, {"busy_fraction": busy}, rank=0, steps=60)
        assert verdict_of(folder).kind == kind
    (advice,) = verdict_of(tmp_path / "idle").advice
    assert (advice.command or "").startswith("stepscope profile")


def test_an_excess_and_the_part_that_most_of_it_is_in_have_a_number_each() -> None:
    slow = Slow(
        kind="chronic", rank=1, host=None, excess_ns=35.3e6, low_ns=30e6, others_ns=100e6, late_steps=60, steps=60,
        part="optimizer", part_ns=26.5e6, samples_ratio=None, stake_fraction=0.2,
    )  # fmt: skip
    steps = SimpleNamespace(world_size=2, rank_numbers=(0, 1), hosts=("a", "a"))
    cost = TimeCost(kind="straggler", share=Estimate(value=0.2), ranks=(1,), excess_ns=35.3e6)
    both = cost_line(cost, steps, (slow,))  # type: ignore[arg-type]
    assert [number in both for number in ("35.3 ms", "26.5 ms")] == [True, True]
    alone = cost_line(cost, steps, (replace(slow, part_ns=35.0e6),))  # type: ignore[arg-type]
    assert [number in alone for number in ("35.3 ms", "35.0 ms")] == [True, False]


def test_python_before_the_forward_pass_is_told_once(tmp_path: Path) -> None:
    write_diary(tmp_path, {"before": [12.0] * 60, "forward": [28.0] * 60, "cpu": [40.0] * 60}, delay=0.0)
    python = Finding(
        rule="python-overhead", severity="problem", title="t", evidence=(), stake_fraction=0.33, confidence="x"
    )
    found = verdict_of(tmp_path, [python])
    assert [(cost.kind, cost.rules) for cost in found.costs] == [("before-forward", ("before",))]
    assert found.stake_fraction == pytest.approx(0.3)


def test_waiting_of_ranks_without_a_processor_is_no_uneven_work(tmp_path: Path) -> None:
    simulate(tmp_path, ranks=2, steps=120, seed=3, noise=0.4, delay=0.3)
    assert [cost.kind for cost in verdict_of(tmp_path).costs] == ["contended-machine"]


def test_a_rank_that_is_late_in_half_of_the_steps_is_no_straggler(tmp_path: Path) -> None:
    for rank in range(2):
        late = [6.0 if (at % 2 == 0) == (rank == 1) and rank == 1 else 0.0 for at in range(60)]
        own = [10.0 + each for each in late]
        comm = [7.0 - each if rank else 1.0 + 6.0 * (at % 2 == 0) for at, each in enumerate(late)]
        write_diary(tmp_path, {"forward": own, "comm": comm, "cpu": own}, rank=rank, world_size=2, delay=0.0)
    assert "straggler" not in [cost.kind for cost in verdict_of(tmp_path).costs]


def test_recompilation_is_told_once(tmp_path: Path) -> None:
    events = [
        {"kind": "compilation", "step": s, "at_ns": 0, "ns": 300_000_000, "inside": True} for s in range(20, 101, 20)
    ]
    times = [310.0 if s % 20 == 0 else 10.0 for s in range(1, 101)]
    write_diary(tmp_path, {"forward": times}, events=events)
    found = verdict_of(tmp_path)
    assert [cost.kind for cost in found.costs] == ["compilation"]
    assert not [note for note in found.notes if note.startswith("compilation")]


def test_ranks_with_more_threads_than_cores_are_contended_from_less_delay_on(tmp_path: Path) -> None:
    for cores, kind in ((8, "computation-or-python"), (2, "contended-machine")):
        folder = tmp_path / str(cores)
        columns = {"forward": [10.0] * 60, "comm": [2.0] * 60, "cpu": [10.0] * 60}
        for rank in range(4):
            write_diary(folder, columns, rank=rank, world_size=4, delay=0.15, threads=1, cores=cores)
        found = verdict_of(folder)
        assert found.kind == kind
    assert "4 ranks with 4 threads share 2 cores" in found.headline


def test_a_pause_before_some_forward_passes_prepares_no_batch(tmp_path: Path) -> None:
    before = [250.0 if step % 20 == 19 else 0.3 for step in range(200)]
    write_diary(tmp_path, {"before": before, "forward": [27.0] * 200, "cpu": [27.0] * 200}, delay=0.0)
    (cost,) = verdict_of(tmp_path).costs
    assert (cost.kind, cost.period) == ("periodic-pause", 20)
    assert cost.share.value == pytest.approx(250 / (250 + 20 * 27.3), rel=0.1)


@pytest.mark.parametrize("usual", [0.3, 8.0])
def test_data_that_some_steps_wait_for_are_told_with_their_period_unless_every_step_waits(
    usual: float, tmp_path: Path
) -> None:
    data = [300.0 if step % 20 == 19 else usual for step in range(200)]
    for rank in range(2):
        columns = {"data": data, "forward": [30.0] * 200, "comm": [1.0] * 200}
        write_diary(tmp_path, columns, rank=rank, world_size=2, delay=0.0)
    fed = [cost for cost in verdict_of(tmp_path).costs if cost.kind == "input-bound"]
    if usual == 0.3:
        assert [(cost.period, cost.rules) for cost in verdict_of(tmp_path).costs] == [(20, ("data",))]
        assert fed[0].event_ns == pytest.approx(300e6, rel=0.05)
        assert fed[0].share.value == pytest.approx(300 / (300 + 20 * 31.3), rel=0.1)
    else:
        assert fed == list(verdict_of(tmp_path).costs)
        assert fed[0].period is None
        assert fed[0].share.value == pytest.approx((300 + 19 * 8) / (300 + 19 * 8 + 20 * 31), rel=0.1)


def test_one_step_that_waited_long_is_no_wait_of_every_step(tmp_path: Path) -> None:
    before = [700.0 if step == 20 else 0.3 for step in range(60)]
    write_diary(tmp_path, {"before": before, "forward": [16.0] * 60, "cpu": [16.0] * 60}, delay=0.0)
    assert verdict_of(tmp_path).costs == ()


def test_ranks_without_a_step_and_a_diary_that_ended_early_are_noted(tmp_path: Path) -> None:
    off = [{"kind": "off", "step": 31, "at_ns": 0, "ns": 0, "what": "OSError in write: no space"}]
    columns = {"forward": [10.0] * 60, "comm": [0.5] * 60}
    write_diary(tmp_path, columns, rank=0, world_size=3, delay=0.0, events=off)
    write_diary(tmp_path, columns, rank=2, world_size=3, delay=0.0)
    notes = verdict_of(tmp_path).notes
    assert [("rank 1 " in note, "step 31" in note) for note in notes[:2]] == [(True, False), (False, True)]


def test_garbage_collected_before_the_forward_pass_is_told_once(tmp_path: Path) -> None:
    found = [
        {"kind": "garbage_collection", "step": n, "at_ns": 0, "ns": 18_000_000, "inside": True} for n in range(1, 61)
    ]
    write_diary(tmp_path, {"before": [20.0] * 60, "forward": [20.0] * 60, "cpu": [40.0] * 60}, delay=0.0, events=found)
    assert [cost.kind for cost in verdict_of(tmp_path).costs] == ["garbage-collection"]


def test_a_rank_whose_excess_is_sure_is_late_though_noise_hides_it_in_some_steps(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    own = np.maximum(rng.normal([[60.0], [72.0]], 15.0, (2, 200)), 1.0)
    for rank in range(2):
        comm = own.max(axis=0) - own[rank] + 5.0
        write_diary(
            tmp_path, {"forward": own[rank], "comm": comm, "cpu": own[rank]}, rank=rank, world_size=2, delay=0.0
        )
    late = (own[1] - own[0] > 0.05 * own[0]).mean()
    assert 0.55 < late < 0.7
    found = verdict_of(tmp_path)
    assert (found.kind, found.ranks) == ("straggler", (1,))


def test_what_the_steps_of_a_failed_job_cost_is_no_verdict(tmp_path: Path) -> None:
    simulate(tmp_path, ranks=2, steps=100, seed=3, transfer_ms=9.0)
    end = JobEnd(kind="crash", code=1, world_size=2, ranks=(1,), exception="ValueError", steps_timed=100)
    write_record(ProfileLayout(tmp_path).end, end)
    found = verdict_of(tmp_path)
    assert (found.kind, found.ranks, found.costs) == ("crash", (1,), ())
    assert found.tree


def test_a_verdict_after_a_restart_says_that_it_is_of_the_last_attempt(tmp_path: Path) -> None:
    simulate(tmp_path, ranks=2, steps=100, seed=3)
    told = []
    for restarts in (0, 1):
        end = JobEnd(kind="ok", code=0, world_size=2, restarts=restarts, steps_timed=100)
        write_record(ProfileLayout(tmp_path).end, end)
        told.append(len(verdict_of(tmp_path).notes))
    assert told[1] == told[0] + 1


@pytest.mark.parametrize(
    ("made", "left", "code", "told"),
    [
        ((60, 60), (0, 1), 0, 0),
        ((60, 30), (0, 1), 0, 1),  # how many of which rank
        ((60, 60), (0,), 0, 1),  # rank 1 left no word
        ((60, 60), (0,), 1, 0),  # how the job failed says it
        ((60, 60), (), None, 0),  # it runs
    ],
)
def test_what_ranks_did_not_record_is_noted_at_the_end(
    tmp_path: Path, made: Sequence[int], left: Sequence[int], code: int | None, told: int
) -> None:
    for rank, steps in enumerate(made):
        columns = {"forward": [10.0] * steps, "comm": [0.5] * steps}
        write_diary(tmp_path, columns, rank=rank, world_size=2, delay=0.0, end={} if rank in left else None)
    layout = ProfileLayout(tmp_path)
    if code is not None:
        write_record(
            layout.end, JobEnd(kind="ok" if code == 0 else "exit-code", code=code, world_size=2, steps_timed=60)
        )
    assert len(verdict_of(tmp_path).notes) == told


def test_ranks_that_do_not_step_together_have_no_straggler(tmp_path: Path) -> None:
    for rank in range(2):
        own = 20.0 * (rank + 1)
        write_diary(tmp_path, {"before": [own] * 60, "comm": [1.0] * 60}, rank=rank, world_size=2, delay=0.0)
    found = verdict_of(tmp_path)
    assert "straggler" not in {cost.kind for cost in found.costs}
    assert len(found.notes) == 1


def test_a_change_is_one_line_with_its_zone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(tmp_path, ranks=1, steps=600, seed=4, slow={0: 1.3}, slow_from=300)
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    found = verdict_of(tmp_path)
    monkeypatch.undo()
    time.tzset()
    assert found.change is not None
    assert " IST)" in found.change.line
    assert below(found).count(found.change.line) == 1


@pytest.mark.parametrize("steps", [3, FEW_STEPS, 2 * FEW_STEPS])
def test_few_steps_are_no_verdict_and_show_the_tree(tmp_path: Path, steps: int) -> None:
    """The first ones are warm-up."""
    simulate(tmp_path, ranks=2, steps=steps, seed=1, data_ms=20.0)
    told = verdict_of(tmp_path)
    few = steps <= FEW_STEPS
    assert told.kind == ("undecided" if few else "input-bound")
    assert bool(told.costs) != few
    assert told.tree
    assert told.advice


@pytest.mark.parametrize("times", [2, 3])
def test_an_event_that_happened_twice_does_not_lead(tmp_path: Path, times: int) -> None:
    events = [
        {"kind": "evaluation", "step": step, "at_ns": 0, "ns": int(400e6), "what": "eval()"}
        for step in range(20, 20 + 20 * times, 20)
    ]
    outside = [400.0 if step in range(20, 20 + 20 * times, 20) else 0.0 for step in range(1, 101)]
    write_diary(tmp_path, {"forward": [10.0] * 100, "outside": outside}, events=events, delay=0.0)
    assert (verdict_of(tmp_path).kind == "evaluation") == (times == 3)


def test_of_a_window_that_the_profiler_slows_no_size_is_told(tmp_path: Path) -> None:
    """Steps of 13 ms take 39 ms under the profiler."""
    simulate(tmp_path, ranks=1, steps=100, seed=2, profiled=range(40, 50), profiler_ms=26.0)
    told = judged_of(tmp_path, [of_window("memory-bandwidth-bound", 0.6), of_window("fp32-matmul", 0.4)])
    assert told.verdict.slowdown == pytest.approx(3.0, rel=0.1)
    assert not told.verdict.window_sized
    assert told.verdict.costs == ()
    assert told.diagnosis.findings == ()
    assert sorted(each.rule for each in told.diagnosis.quiet) == ["fp32-matmul", "memory-bandwidth-bound"]


def test_ranks_that_the_profiler_slows_unequally_give_no_sizes(tmp_path: Path) -> None:
    simulate(tmp_path, ranks=2, steps=100, seed=2, profiled=range(40, 50), profiler_ms={0: 6.0, 1: 1.0})
    told = verdict_of(tmp_path)
    assert told.slowdown is not None
    assert told.slowdown < 1.5
    assert not told.window_sized


@pytest.mark.parametrize(
    ("others", "transfer_ms", "kinds"),
    [
        (0.0, 7.0, ["communication-bound"]),
        (1.0, 7.0, ["contended-machine"]),
        (1.0, 20.0, ["contended-machine", "communication-bound"]),
    ],
)
def test_what_others_take_of_the_processors_is_no_communication(
    others: float, transfer_ms: float, kinds: list[str], tmp_path: Path
) -> None:
    """A seventh of the step without a processor is gloo's own doing, unless somebody else is seen to use one."""
    simulate(tmp_path, ranks=2, steps=100, seed=2, transfer_ms=transfer_ms, delay=0.14)
    for rank in range(2):
        write_load(tmp_path, rank=rank, steps=100, busy_s=1.0 + others, process_s=0.5, samples=80)
    assert [cost.kind for cost in verdict_of(tmp_path).costs] == kinds


def test_waits_for_a_processor_in_the_window_are_no_python(tmp_path: Path) -> None:
    simulate(tmp_path, ranks=1, steps=100, seed=2, delay=0.15, profiled=range(40, 50))
    assert verdict_of(tmp_path, [of_window("python-overhead", 0.2)]).costs == ()


@pytest.mark.parametrize(("stake", "share"), [(0.6, 0.44), (0.3, None)])
def test_what_the_profiler_adds_is_no_time_of_the_host(tmp_path: Path, stake: float, share: float | None) -> None:
    """A profiled step takes 1.4 times a timed one: of 60% at least 1.4 * 60% - 40% are a timed step's, of 30% maybe none."""
    window = {"profiled": range(40, 50), "profiler_ms": 0.4 * 13.2}
    simulate(tmp_path, ranks=1, steps=100, seed=2, noise=0.001, delay=0.0, **window)
    costs = verdict_of(tmp_path, [of_window("python-overhead", stake)]).costs
    assert [each.kind for each in costs] == ([] if share is None else ["host-bound"])
    assert share is None or costs[0].share.value == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize(("slowdown", "stake"), [(1.0, 0.4 + 0.2), (1.25, 0.4 + 0.15), (3.0, 0.4)])
def test_the_profiler_adds_to_all_that_the_host_does(slowdown: float, stake: float) -> None:
    """Half of the window is communication, all of which goes; of the other half two fifths are the wrapper's own."""
    units = replace(of_window("fsdp-small-units", 0.7), stake_on_host=0.2)
    causes: Any = SimpleNamespace(exposed=0.5, slowdown=slowdown, crowding=0.0)
    assert _returned_share(units, 0.4, causes) == pytest.approx(stake)


def test_a_part_that_timed_steps_hardly_have_is_no_finding(tmp_path: Path) -> None:
    """Waiting for experts lies in communication, of which the timed steps have 4%."""
    simulate(tmp_path, ranks=2, steps=100, seed=2, transfer_ms=0.3)
    assert judged_of(tmp_path, [of_window("expert-skew", 0.3)]).diagnosis.findings == ()


@pytest.mark.parametrize(("saved_ms", "rules"), [(0.0, ["python-overhead"]), (60.0, [])])
def test_a_checkpoint_in_the_window_is_no_python_between_operators(
    saved_ms: float, rules: list[str], tmp_path: Path
) -> None:
    """Of 10 profiled steps of 20 ms one is longer by a save: a trace shows that as Python."""
    profiled = [20 < step <= 30 for step in range(1, 101)]
    columns = {
        "forward": [6.0] * 100,
        "backward": [14.0] * 100,
        "outside": [saved_ms if step == 25 else 0.0 for step in range(1, 101)],
    }
    write_diary(tmp_path, columns, flags=[PROFILED if flag else 0 for flag in profiled])
    findings = judged_of(tmp_path, [of_window("python-overhead", 0.2)]).diagnosis.findings
    assert [finding.rule for finding in findings] == rules


def test_a_cause_has_the_stake_of_the_verdict_and_no_size_of_the_window(tmp_path: Path) -> None:
    simulate(tmp_path, ranks=2, steps=100, seed=2, transfer_ms=9.0)
    naive = of_window("naive-synchronisation", 0.1, cause="gradients are reduced after backward: 12 reductions a step")
    told = judged_of(tmp_path, [naive, of_window("exposed-communication", 0.2)])
    assert (told.verdict.kind, told.verdict.costs[0].cause) == ("communication-bound", "naive-synchronisation")
    assert told.verdict.why[0] == naive.cause
    assert [each.rule for each in told.diagnosis.findings] == ["naive-synchronisation"]
    assert told.diagnosis.findings[0].stake_fraction == told.verdict.stake_fraction
    assert told.diagnosis.findings[0].title.startswith(naive.cause)


def test_behind_a_contended_machine_the_tree_marks_what_comes_next(tmp_path: Path) -> None:
    simulate(tmp_path, ranks=2, steps=100, seed=2, transfer_ms=9.0, delay=0.3)
    told = verdict_of(tmp_path)
    assert (told.kind, told.marked) == ("contended-machine", "communication-bound")
    assert [part.key for part in told.tree if part.cause] == ["communication"]


def test_a_straggler_of_the_window_alone_is_not_told(tmp_path: Path) -> None:
    simulate(tmp_path, ranks=2, steps=100, seed=2)
    told = judged_of(tmp_path)
    late = Straggler(
        rank=0, rule="short", kind="chronic", share_of_skew=0.9, times_last=9, instances=10, steps=5, p_value=0.007,
        excess_ns=None, excess_low_ns=None, saved_ns=10**6, late_ns=10**6, largest_share=0.2, cause="unknown", causes=(),
        confidence="5 steps", evidence=(),
    )  # fmt: skip
    report = StragglerReport(
        stragglers=(late,), pattern="chronic", skew_ns=10**7, waiting_ns=10**7, instances=10, steps=5, text="rank 0"
    )
    summary = TraceSummary(ranks=(), verdicts=(), world_size=2, collectives=None, stragglers=report, notes=())
    kept = [borne_out(summary, told.verdict).stragglers]
    simulate(tmp_path / "slow", ranks=2, steps=100, seed=2, slow={0: 1.5})
    kept.append(borne_out(summary, verdict_of(tmp_path / "slow")).stragglers)
    assert [each and each.stragglers for each in kept] == [(), (late,)]


@pytest.mark.parametrize("slow", [{}, {1: 1.6}])
@pytest.mark.parametrize(("planted", "kind"), [("transfer_ms", "communication-bound"), ("data_ms", "input-bound")])
def test_the_headline_and_the_marked_part_are_one_number(
    planted: str, kind: str, slow: Mapping[int, float], tmp_path: Path
) -> None:
    """With a late rank, too: then what is sent is told without the waiting."""
    simulate(tmp_path, ranks=2, steps=100, seed=2, slow=slow, **{planted: 20.0})
    told = verdict_of(tmp_path)
    assert told.kind == kind
    (marked,) = [part for top in told.tree for part in (top, *top.parts) if part.cause]
    assert told.share is not None
    assert marked.share == pytest.approx(told.share.value, abs=0.02)


@pytest.mark.parametrize(("operators", "kinds"), [(800, []), (12_000, ["host-bound"]), (40_000, [])])
def test_operators_that_have_no_time_to_compute_are_launched(
    operators: int, kinds: Sequence[str], tmp_path: Path
) -> None:
    """A step computes for 13 ms: 16 us an operator, 1.1, or 0.3, in which none ends: they are of other steps."""
    simulate(tmp_path, ranks=1, steps=100, seed=2)
    summary: Any = SimpleNamespace(ranks=[SimpleNamespace(step_operators=float(operators))])
    job = load_evidence([profile_record(tmp_path)]).profiled[0]
    assert job.steps is not None
    causes = replace(causes_of(job, job.steps, NOTHING, None), window=summary)
    assert [cost.kind for cost in _tiny_operators(causes)] == kinds
