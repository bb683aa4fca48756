"""A sample of ranks, and what it says of itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.trace_builder import build, write_job

from stepscope.core.errors import UsageError
from stepscope.traces.job import analyse_captures
from stepscope.traces.sections import Wanted

LATE = 5


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tensor-parallel pairs."""
    plan = build(shape="tensor", world=8, steps=3, late={LATE: 300_000})
    return write_job(plan, tmp_path_factory.mktemp("sample") / "job")


def test_the_ranks_asked_for_are_read_as_names_or_the_user_tell_them(tmp_path: Path) -> None:
    write_job(build(world=4, steps=2), tmp_path / "job", name="part{}".format)
    with pytest.raises(UsageError) as caught:
        analyse_captures(tmp_path / "job", Wanted(sample={0, 3}))
    assert "4 files" in (caught.value.why or "")
    stated = {"part0.json": 0, "part3.json": 3}
    (summary,) = analyse_captures(tmp_path / "job", Wanted(sample={0, 3}, ranks=stated)).values()
    assert [p.facts.rank for p in summary.ranks] == [0, 3]


def test_a_sample_says_which_groups_are_not_complete(job: Path) -> None:
    (summary,) = analyse_captures(job, Wanted(sample={0, 4, 5})).values()
    assert [p.facts.rank for p in summary.ranks] == [0, 4, 5]
    said = [note.text for note in summary.notes]
    assert sum(text.startswith("a sample, 3 ranks of 8 files") for text in said) == 1
    assert sum(text == "groups that are not complete in the sample: tp0 (1 of 2 ranks)" for text in said) == 1


def test_all_ranks_are_no_sample(job: Path) -> None:
    (whole,), (asked,) = (analyse_captures(job, Wanted(sample=s)).values() for s in (None, range(8)))
    assert asked == whole
    assert not whole.notes


def test_a_rank_without_a_file_is_a_mistake(job: Path) -> None:
    with pytest.raises(UsageError, match="no trace of rank 9"):
        analyse_captures(job, Wanted(sample={0, 9}))
