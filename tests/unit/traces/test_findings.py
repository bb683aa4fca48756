"""What `trace` says first, and only when it is so."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from tests.trace_builder import build, write_job

from stepscope.core.errors import MissingError
from stepscope.records.trace_summary import TraceSummary
from stepscope.report.trace_sections import table
from stepscope.traces.findings import RULES
from stepscope.traces.job import analyse_job


def fired(summary: TraceSummary) -> set[str]:
    rules = {f.rule for f in summary.findings}
    assert rules <= set(RULES)
    return rules


def test_a_trace_of_several_ranks_without_communication_is_a_finding_not_a_zero(tmp_path: Path) -> None:
    folder = write_job(build(world=2, nccl_args=False), tmp_path)
    for file in folder.iterdir():
        file.write_text(
            file.read_text().replace("ncclDevKernel", "someKernel").replace("ncclKernel", "someKernel")
        )
    summary = analyse_job(folder)
    assert all(p.budget is not None and p.budget.parts.comm_ns == 0 for p in summary.ranks)
    assert "no-communication" in fired(summary)


def test_a_single_rank_job_may_be_silent(tmp_path: Path) -> None:
    assert "no-communication" not in fired(analyse_job(write_job(build(world=1), tmp_path)))


@pytest.mark.parametrize(
    ("kind", "rule"), [("launch", "launch-bound"), ("data", "data-loading"), ("sync", "host-sync")]
)
def test_what_makes_every_rank_idle_fires_its_own_rule(kind: str, rule: str, tmp_path: Path) -> None:
    slow = dict.fromkeys(range(2), 4_000_000)
    job = build(world=2, steps=4, late=slow, late_kind=kind, transfer_ns=10_000)
    rules = fired(analyse_job(write_job(job, tmp_path)))
    assert rule in rules
    assert rules & {"launch-bound", "data-loading", "host-sync"} == {rule}


def test_a_straggler_is_named_and_a_faster_network_is_not_advised(tmp_path: Path) -> None:
    summary = analyse_job(
        write_job(build(world=4, steps=6, late={2: 900_000}, late_kind="compute"), tmp_path)
    )
    found = next(f for f in summary.findings if f.rule == "straggler")
    assert "rank 2" in found.title
    assert any("faster network would not help" in a for a in found.advice)
    exposed = next((f for f in summary.findings if f.rule == "exposed-communication"), None)
    assert exposed is None or found.stake_fraction > exposed.stake_fraction


def test_hidden_communication_is_no_finding(tmp_path: Path) -> None:
    job = build(world=2, steps=4, transfer_ns=20_000, backward_ns=900_000, forward_ns=900_000)
    assert fired(analyse_job(write_job(job, tmp_path))) == set()


def test_a_table_without_its_frame_library_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = analyse_job(write_job(build(world=2), tmp_path))
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(MissingError, match="pandas is not installed"):
        table(summary, "budget").to_pandas()


def test_groups_of_tensor_parallel_ranks_are_told_apart(tmp_path: Path) -> None:
    summary = analyse_job(write_job(build(world=4, shape="tensor", steps=2), tmp_path))
    assert {g.group for p in summary.ranks for g in p.groups} == {"tp0", "tp2"}
    for each in summary.ranks:
        assert each.budget is not None
        assert [g.comm_ns for g in each.groups] == [each.budget.parts.comm_ns]
        assert [g.exposed_ns for g in each.groups] == [each.budget.parts.exposed_comm_ns]


def test_missing_ranks_and_different_steps_are_said(tmp_path: Path) -> None:
    folder = write_job(build(world=4, steps=4, capture={2: (1, 3)}), tmp_path)
    (folder / "rank-3.json").unlink()
    said = [n.text for n in analyse_job(folder).notes if n.kind == "missing"]
    assert any(text.startswith("traces of 3 of 4 ranks") for text in said)
    assert any("ranks recorded different steps: most 10 to 13, rank 2 11 to 12" in text for text in said)


def test_too_little_memory_is_said_with_a_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("stepscope.traces.rank_pass.load_file", full)
    with pytest.raises(MissingError, match="not enough memory") as caught:
        analyse_job(write_job(build(world=1), tmp_path))
    assert "--show budget" in str(caught.value)


def test_a_killed_reader_is_said(tmp_path: Path) -> None:
    folder = write_job(build(world=2), tmp_path)
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        pool.submit(os.getpid).result()
        for pid in list(pool._processes):
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(MissingError, match="was killed"):
            analyse_job(folder, executor=pool)
