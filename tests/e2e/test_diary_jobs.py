"""The diary of real torch jobs (diary_jobs.py), which train as they do without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.torch_forks import ForkedPopen, shared_server

from stepscope.launch.hooked_job import HOOK
from stepscope.records import codec
from stepscope.records.profile import COLUMNS, GroupWaits, HookedRank, RankEnd, WindowOfRank, WindowRequest
from stepscope.results.diary import job_steps
from stepscope.results.group_waits import group_waits
from stepscope.results.memory_growth import job_memory
from stepscope.store.diary import RankDiary, read_diaries
from stepscope.store.layout import ProfileLayout
from stepscope.store.reader import read_record

pytestmark = pytest.mark.e2e

HERE = Path(__file__).parent
MS = 1e6
LATE_NS = 50 * MS


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all jobs, each run once."""
    folder = tmp_path_factory.mktemp("jobs")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for name in ("RANK", "WORLD_SIZE", "STEPSCOPE_HOOK"):
        environment.pop(name, None)
    stderr = folder / "stderr"
    with stderr.open("w") as file:
        line = [sys.executable, str(HERE / "diary_jobs.py"), str(folder), str(HOOK)]
        process = ForkedPopen(line, server=shared_server(), env=environment, stderr=file)
        assert process.wait(timeout=280) == 0, stderr.read_text()
    return folder


def _diaries(jobs: Path, name: str) -> tuple[RankDiary, ...]:
    return read_diaries(ProfileLayout(jobs / name))


def _losses(jobs: Path, name: str) -> Any:
    return json.loads((jobs / f"{name}-losses.json").read_text())


@pytest.mark.timeout(300)
def test_what_ranks_wait_for_is_divided_by_group_and_adds_up(jobs: Path) -> None:
    diaries = _diaries(jobs, "mesh")
    assert len(diaries) == 4
    for each in diaries:
        assert each.groups is not None
        timed = float(np.nansum(each.columns["comm_ns"][each.timed]))
        assert (each.groups.steps, sum(_ns(group) for group in each.groups.groups)) == (
            29,
            pytest.approx(timed, rel=0.01),
        )
        found = {group.name: (group.ranks, set(group.operations)) for group in each.groups.groups}
        pair, column = (each.rank // 2 * 2, each.rank // 2 * 2 + 1), (each.rank % 2, each.rank % 2 + 2)
        assert found == {"mesh_tp": (pair, {"all_reduce"}), "mesh_dp": (column, {"all_gather", "reduce_scatter"})}
    waits = group_waits(job_steps(diaries))
    assert {(each.group, each.ranks, each.of_ranks) for each in waits} == {("dp", 2, 4), ("tp", 2, 4)}
    assert all(each.waiting_ns is not None and 0 <= each.waiting_ns <= each.ns for each in waits)


def _ns(group: GroupWaits) -> int:
    return sum(ns for _, ns in group.operations.values())


@pytest.mark.timeout(300)
def test_a_job_of_one_group_and_operation_has_no_division(jobs: Path) -> None:
    assert group_waits(job_steps(_diaries(jobs, "ddp"))) == ()
    sharded = group_waits(job_steps(_diaries(jobs, "fsdp2")))
    assert {(each.group, each.operation) for each in sharded} == {
        ("all ranks", "all_gather"), ("all ranks", "reduce_scatter"),
    }  # fmt: skip


@pytest.mark.timeout(300)
def test_jobs_end_as_without_the_hook(jobs: Path) -> None:
    codes = json.loads((jobs / "codes.json").read_text())
    expected = {"leaves": [3], "raises": [1], "never_steps": [1]}
    assert codes == {name: expected.get(name, [0] * len(each)) for name, each in codes.items()}
    assert _losses(jobs, "plain") == _losses(jobs, "bare") == _losses(jobs, "unwritable")
    assert "stepscope_hook" not in (jobs / "stderr").read_text(), "no frame of ours in a traceback of the job's"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "steps", "micro_steps"),
    [
        ("plain", 12, 1), ("teaches", 30, 1), ("pickled", 10, 1), ("gan", 10, 1), ("in_thread", 10, 1),
        ("recomputed", 10, 1), ("lbfgs", 4, 3), ("generator", 10, 1), ("forks", 6, 1), ("leaves", 5, 1), ("raises", 3, 1),
    ],
)  # fmt: skip
def test_every_step_has_its_parts(jobs: Path, name: str, steps: int, micro_steps: int) -> None:
    (diary,) = _diaries(jobs, name)
    assert diary.steps == steps
    assert list(diary.flags) == [16] + [0] * (steps - 1)
    assert set(diary.micro_steps[1:]) == {micro_steps}
    for part in ("data_ns", "forward_ns", "backward_ns", "optimizer_ns", "cpu_ns"):
        assert (diary.columns[part][2:] > 0).all(), part  # the second step of a thread has no CPU time
    assert (diary.columns["comm_ns"] == 0).all()
    parts = sum(np.nan_to_num(diary.columns[part]) for part in COLUMNS if not part.endswith(("whole_ns", "cpu_ns")))
    assert (parts <= diary.whole_ns * (1 + 1e-6)).all()
    assert not [event for event in diary.events if event.kind in ("off", "dropped")]


@pytest.mark.timeout(300)
def test_events_are_told_where_they_happened(jobs: Path) -> None:
    (diary,) = _diaries(jobs, "plain")
    told = [(event.kind, event.step, event.count) for event in diary.events if not event.inside]
    assert told == [
        (kind, step, count) for step in (5, 9, 13) for kind, count in (("checkpoint", 1), ("evaluation", 3))
    ]
    for step in (5, 9):
        outside = sum(event.ns for event in diary.events if event.step == step and not event.inside)
        assert diary.columns["outside_ns"][step - 1] == pytest.approx(outside, rel=1e-6)
    garbage = [event for event in diary.events if event.kind == "garbage_collection" and event.step == 7]
    assert [event.inside for event in garbage if event.ns > 0] == [True] * len(garbage) != []


@pytest.mark.timeout(300)
def test_passes_without_gradients_are_no_evaluation_and_workers_that_start_no_data(jobs: Path) -> None:
    (diary,) = _diaries(jobs, "teaches")
    told = [(event.kind, event.step, event.count) for event in diary.events if not event.inside]
    starts = [("loader_start", step, 1) for step in (11, 21)]
    assert sorted(told) == sorted([*[("inference", step, 7) for step in (6, 11, 16, 21, 26)], *starts])
    taught = diary.columns["inference_ns"] > 0
    assert [at + 1 for at in range(30) if not taught[at]] == [1, 6, 11, 16, 21, 26], "a rollout's own teacher is in it"
    for step in (11, 21):
        start = sum(event.ns for event in diary.events if event.kind == "loader_start" and event.step == step)
        assert start > diary.columns["data_ns"][step - 1]
        assert diary.columns["before_cpu_ns"][step - 1] <= diary.whole_ns[step - 1]


@pytest.mark.timeout(300)
def test_the_rank_that_is_late_in_its_backward_pass_waits_least(jobs: Path) -> None:
    for name in ("ddp", "fsdp2"):
        first, late = (each.columns for each in _diaries(jobs, name))
        waits = [np.median(each["comm_ns"][2:]) for each in (first, late)]
        assert waits[0] > 0.8 * LATE_NS + waits[1], name
        assert np.median(late["backward_ns"][2:]) >= LATE_NS, name
        assert np.median(first["backward_ns"][2:]) < 0.8 * LATE_NS, name


@pytest.mark.timeout(300)
def test_what_every_step_keeps_is_named_with_its_rate(jobs: Path) -> None:
    steps = job_steps(_diaries(jobs, "hoards"))
    assert steps is not None
    memory = job_memory(steps)
    assert memory is not None
    (grows,) = memory.growth
    assert (grows.of, grows.ranks) == ("host", (0,))
    assert grows.per_step.value == pytest.approx(2**20, rel=0.1)
    assert grows.full_s is not None


@pytest.mark.timeout(300)
def test_ends_are_told(jobs: Path) -> None:
    (raised,) = (each.end for each in _diaries(jobs, "raises"))
    assert raised is not None
    assert (raised.kind, raised.exception, raised.steps, raised.phase) == ("exception", "ValueError", 3, "forward")
    assert raised.message == "a batch of the wrong kind"
    assert raised.place is not None
    assert raised.place.endswith('in forward: raise ValueError("a batch of the wrong kind")')
    (left,) = _diaries(jobs, "leaves")
    assert left.end is None
    (path,) = (jobs / "never_steps" / ".stepscope").glob("end-00000-p*.json")
    early = read_record(path, RankEnd)
    assert (early.exception, early.message, early.steps) == ("FileNotFoundError", "data/train.bin", 0)
    assert {each.end.kind for each in _diaries(jobs, "ddp") if each.end is not None} == {"exit"}


@pytest.mark.timeout(300)
def test_two_processes_of_one_rank_have_a_diary_each(jobs: Path) -> None:
    found = _diaries(jobs, "twice")
    assert [each.steps for each in found] == [5, 5]
    assert len({each.header.pid for each in found}) == 2
    assert len(ProfileLayout(jobs / "twice").ranks()) == 1


@pytest.mark.timeout(300)
def test_ranks_that_hang_tell_where(jobs: Path) -> None:
    folder = jobs / "hangs" / ".stepscope"
    stacks = [(folder / f"stack-0000{rank}-0.txt").read_text() for rank in (0, 1)]
    assert "in all_reduce" in stacks[0]
    assert "time.sleep(0.05)" in stacks[1]
    entered = [len(json.loads((folder / f"flight-0000{rank}-0.json").read_text())["entries"]) for rank in (0, 1)]
    assert entered[0] == entered[1] + 1


@pytest.mark.timeout(300)
def test_facts_are_those_of_the_job(jobs: Path) -> None:
    (path,) = ProfileLayout(jobs / "plain").ranks()
    facts = read_record(path, HookedRank).facts
    assert facts["frameworks"] == {}
    assert facts["optimizer"]["devices"] == ["cpu"]
    assert facts["optimizer"]["parameters"]["float32"]["tensors"] == 6
    loader = facts["loaders"]["first"]
    assert (loader["num_workers"], loader["dataset"], loader["distributed_sampler"]) == (0, "TensorDataset", False)
    ddp = read_record(ProfileLayout(jobs / "ddp").ranks()[0], HookedRank).facts
    assert ddp["ddp"]["count"] == 1
    sharded = read_record(ProfileLayout(jobs / "fsdp2").ranks()[0], HookedRank).facts
    assert [(each["mesh_shape"], each["placements"]) for each in sharded["dtensor"]] == [([2], ["S(0)"])]


def _window(folder: Path, world: int, **request: Any) -> list[WindowOfRank]:
    """Reports of a job with a stand-in for torch whose window the hook was asked for."""
    folder.mkdir()
    (folder / "profile.json").write_text("{}")
    settings: dict[str, Any] = {"wait": "auto", "warmup": 1, "fixed_step": 20, "collect": ()}
    options = {
        "output": str(folder),
        "tool_version": "0",
        "step_optimizer": 1,
        "first": codec.to_builtins(WindowRequest(**(settings | request))),
    }
    environment: Mapping[str, str] = {
        **os.environ,
        "STEPSCOPE_HOOK": json.dumps(options),
        "PYTHONPATH": os.pathsep.join([str(HOOK), str(HERE.parent / "fake_torch")]),
        "STEPS": "120",
    }
    job = ["launch", str(world), "plain"] if world > 1 else ["plain"]
    subprocess.run([sys.executable, str(HERE / "hooked_job.py"), *job], env=environment, timeout=100, check=True)
    return [read_record(path, WindowOfRank) for path in ProfileLayout(folder).window_ranks(1)]


@pytest.mark.parametrize("wait", ["auto", 0, 2])
def test_ranks_record_the_same_steps_whatever_they_wait_for(tmp_path: Path, wait: int | str) -> None:
    reports = _window(
        tmp_path / "p", 3, steps="auto", wait=wait, fixed_step=20 if wait == "auto" else max(int(wait), 1)
    )
    assert [each.status for each in reports] == ["written"] * 3
    assert len({(each.first_step, each.last_step) for each in reports}) == 1
    assert 8 <= reports[0].last_step - reports[0].first_step <= 32


def test_a_single_rank_needs_no_margin(tmp_path: Path) -> None:
    (report,) = _window(tmp_path / "p", 1, steps=2, wait=0, fixed_step=1, warmup=0)
    assert (report.status, report.first_step, report.last_step) == ("written", 1, 3)
