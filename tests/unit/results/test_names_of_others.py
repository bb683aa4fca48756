"""Traces and settings of other programs that bear the names of our own records are recognised by their content."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.trace_builder import build, rank_text, write_job
from tests.trace_layout import write
from tests.unit.results.test_open import CELLS, load, run_folder

from stepscope.api.traces import traces_of
from stepscope.core.errors import DataError
from stepscope.results.profiled_job import read_profiled_job

NAMES = ("run.json", "profile.json", "verdict.json", "environment.json", "calib.json", "results.json", "spec.json")


@pytest.mark.parametrize("name", NAMES)
def test_a_trace_is_one_whatever_it_is_called(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, rank_text(build(world=1), 0))
    assert traces_of(str(tmp_path), None) == [str(tmp_path)]
    (job,) = load(tmp_path).traces
    assert [p.facts.rank for p in job.summary.ranks] == [0]
    assert read_profiled_job(tmp_path) is None


@pytest.mark.parametrize("content", ['{"lr": 0.1}', "[1, 2]", "{}"])
@pytest.mark.parametrize("name", NAMES)
def test_settings_beside_traces_change_nothing(tmp_path: Path, name: str, content: str) -> None:
    folder = write_job(build(world=2), tmp_path)
    (folder / name).write_text(content)
    assert traces_of(str(folder), None) == [str(folder)]
    (job,) = load(folder).traces
    assert [p.facts.rank for p in job.summary.ranks] == [0, 1]


def test_a_run_folder_stays_one_where_its_record_is_damaged(tmp_path: Path) -> None:
    layout = run_folder(tmp_path)
    assert len(load(tmp_path).cells) == len(CELLS)
    layout.run.write_bytes(b"")
    with pytest.raises(DataError, match=r"run\.json"):
        load(tmp_path)


def test_a_run_of_another_program_is_no_run_folder(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"schema": "other/1", "cells": ["a"]}))
    write(tmp_path / "rank0.json", rank_text(build(world=1), 0))
    assert not load(tmp_path).cells
