"""A job over all its ranks: what is missing is said, and what ends the reading early."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from tests.trace_builder import build, write_job

from stepscope.core.errors import MissingError
from stepscope.report.trace_sections import table
from stepscope.traces.job import analyse_job


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
