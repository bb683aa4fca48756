"""The time budget of generated jobs: planted truth found to the nanosecond, and identities that always hold."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.trace_builder import Clock, Job, build, write_job

from stepscope.records.trace_summary import RankPass
from stepscope.traces.job import analyse_job
from stepscope.traces.sections import Wanted

EVERYTHING = Wanted(sections=frozenset({"budget", "steps", "phases", "idle"}))
SUMMARY = Wanted(sections=frozenset({"budget"}))


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    world = draw(st.integers(2, 4))
    late_rank = draw(st.integers(0, world - 1))
    return build(
        shape=draw(st.sampled_from(["ddp", "fsdp", "tensor", "pipeline"])),
        world=world if world % 2 == 0 else world + 1,
        steps=draw(st.integers(1, 3)),
        layers=draw(st.integers(1, 3)),
        transfer_ns=draw(st.sampled_from([20_000, 150_000, 900_000])),
        launch_ns=draw(st.sampled_from([1_000, 4_000, 60_000])),
        data_ns=draw(st.sampled_from([0, 400_000])),
        copy_ns=draw(st.sampled_from([0, 20_000])),
        sync=draw(st.booleans()),
        overlap=draw(st.booleans()),
        late={late_rank: 300_000} if draw(st.booleans()) else {},
        late_kind=draw(st.sampled_from(["compute", "launch", "data", "sync"])),
        clocks={0: Clock(offset_ns=draw(st.integers(-(10**9), 10**9)))},
        generation=draw(st.sampled_from(["relative", "absolute"])),
        device=draw(st.sampled_from(["gpu", "gpu", "gloo"])),
    )


def analysed(job: Job, wanted: Wanted) -> tuple[RankPass, ...]:
    with TemporaryDirectory() as folder:
        return analyse_job([write_job(job, Path(folder))], wanted).ranks


@examples(40)
@given(jobs())
def test_the_planted_budget_is_found_to_the_nanosecond(job: Job) -> None:
    for wanted in (EVERYTHING, SUMMARY):
        for each in analysed(job, wanted):
            truth = job.truth[each.facts.rank]
            budget = each.budget
            ends_ns = (
                budget.before_work_ns + budget.after_work_ns if budget.source == "device" else 0
            )  # truth: work alone
            for name in (
                "window",
                "compute",
                "comm",
                "memory",
                "overlap",
                "exposed_comm",
                "exposed_memory",
                "busy",
                "idle",
            ):
                beyond_ns = ends_ns if name in ("window", "idle") else 0
                assert getattr(budget.parts, f"{name}_ns") == getattr(truth, f"{name}_ns") + beyond_ns, name


@examples(40)
@given(jobs())
def test_parts_phases_and_causes_sum_exactly_and_steps_tile_the_window(job: Job) -> None:
    for each in analysed(job, EVERYTHING):
        for parts in (each.budget.parts, *(s.parts for s in each.steps)):
            total = parts.compute_ns + parts.exposed_comm_ns + parts.exposed_memory_ns + parts.idle_ns
            assert total == parts.window_ns == parts.busy_ns + parts.idle_ns
            assert 0 <= parts.exposed_comm_ns <= parts.comm_ns
        parts = each.budget.parts
        for column in ("compute", "exposed_comm", "exposed_memory", "idle"):
            assert sum(getattr(p, f"{column}_ns") for p in each.phases) == getattr(parts, f"{column}_ns")
        assert sum(i.idle_ns for i in each.idle) == parts.idle_ns
        assert [s.step for s in each.steps] == list(job.truth[each.facts.rank].steps)
        if job.plan.device == "gpu":
            ends = [s.start_ns + s.parts.window_ns for s in each.steps]
            assert ends[:-1] == [s.start_ns for s in each.steps[1:]]
            assert each.steps[0].start_ns == each.budget.start_ns
            assert ends[-1] == each.budget.start_ns + parts.window_ns


def test_rank_order_file_names_and_a_shift_of_the_clock_do_not_matter(tmp_path: Path) -> None:
    job = build(world=4, late={2: 400_000})
    plain = analyse_job([write_job(job, tmp_path / "a")], EVERYTHING)
    backwards = write_job(job, tmp_path / "b", name=lambda rank: f"part{9 - rank}", ending=".json.gz")
    other = analyse_job(sorted(backwards.iterdir()), EVERYTHING)
    assert [p.budget for p in plain.ranks] == [p.budget for p in other.ranks]
    assert [p.idle for p in plain.ranks] == [p.idle for p in other.ranks]
    shifted = build(world=4, late={2: 400_000}, clocks={rank: Clock(offset_ns=123_456_789) for rank in range(4)})
    there = analyse_job([write_job(shifted, tmp_path / "c")], EVERYTHING)
    assert [p.phases for p in plain.ranks] == [p.phases for p in there.ranks]
    assert [[s.parts for s in p.steps] for p in plain.ranks] == [[s.parts for s in p.steps] for p in there.ranks]
