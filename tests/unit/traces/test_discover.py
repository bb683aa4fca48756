"""candidates: which files are meant, in which order, and what is said when none is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stepscope.core.errors import DataError
from stepscope.traces.discover import candidates
from stepscope.traces.file_names import rank_from_name


def touch(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()


def test_a_name_with_brackets_is_a_name_before_it_is_a_pattern(tmp_path: Path) -> None:
    touch(tmp_path, "run[1].json", "run1.json")
    assert [f.name for f in candidates([tmp_path / "run[1].json"])[0]] == ["run[1].json"]
    assert [f.name for f in candidates([str(tmp_path / "run[12].json")])[0]] == ["run1.json"]


def test_what_matches_nothing_says_what_is_near(tmp_path: Path) -> None:
    touch(tmp_path, "rank-0.json")
    for name in ("rank-1.json", "x*.json"):
        with pytest.raises(DataError, match="no such file or folder") as error:
            candidates([tmp_path / name])
        assert "rank-0.json" in str(error.value)
    with pytest.raises(DataError, match="does not exist"):
        candidates([tmp_path / "none" / "rank-1.json"])


def test_a_folder_without_trace_files_is_an_error(tmp_path: Path) -> None:
    touch(tmp_path, "a.txt")
    with pytest.raises(DataError, match="no trace files in this folder"):
        candidates([tmp_path])


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(DataError, match="not a file"):
        candidates([tmp_path / "pipe.json"])


@pytest.mark.parametrize("name", ["a\0b", "x" * 300])
def test_impossible_names_are_one_clear_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError):
        candidates([tmp_path / name])


def test_folders_of_ranks_are_one_job_in_the_order_of_ranks(tmp_path: Path) -> None:
    for rank in (10, 2):
        (tmp_path / f"rank{rank}").mkdir()
        (tmp_path / f"rank{rank}" / "trace.json").write_text("{}")
    files, named = candidates([tmp_path])
    assert [rank_from_name(file) for file in files] == [2, 10]
    assert not named


@pytest.mark.parametrize("inner", ["trace", "profile_traces/iteration_20", "torch_profile", "traces"])
def test_a_jobs_folder_gives_what_its_folder_of_traces_holds(tmp_path: Path, inner: str) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / inner).mkdir(parents=True)
    for rank in range(2):
        (tmp_path / inner / f"rank{rank}_trace.json").write_text("{}")
    assert [file.parent for file in candidates([tmp_path])[0]] == [tmp_path / inner] * 2


def test_a_folder_of_folders_names_them(tmp_path: Path) -> None:
    for name in ("job-a", "job-b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rank-0.json").write_text("{}")
    (tmp_path / "notes").mkdir()
    with pytest.raises(DataError) as caught:
        candidates([tmp_path])
    assert caught.value.fix == "name one of the folders in it: job-a, job-b"
