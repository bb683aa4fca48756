"""Whether this process is a rank of a world that a launcher started, and how its ranks find the spec that is for them."""

import threading
from pathlib import Path

import pytest

from stepscope.core.errors import MissingError, UsageError
from stepscope.launch.join import clear, gather, join, joined_world, nothing_to_do
from stepscope.records.cell import GroupSpec
from stepscope.store.layout import GroupLayout
from stepscope.store.writer import make_dir, write_record

WHOLE = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}


def test_a_whole_world_is_joined_and_none_is_none() -> None:
    assert joined_world(WHOLE) == (1, 2)
    assert joined_world({"LOCAL_RANK": "1", "MASTER_ADDR": "n1"}) is None
    assert joined_world({"RANK": "", "WORLD_SIZE": ""}) is None


@pytest.mark.parametrize("missing", [["LOCAL_RANK"], ["MASTER_ADDR"], ["LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"]])
def test_leftovers_of_a_world_are_refused_naming_what_is_missing_and_what_to_unset(missing: list[str]) -> None:
    present = {name: value for name, value in WHOLE.items() if name not in missing}
    with pytest.raises(UsageError) as caught:
        joined_world(present)
    for name in missing:
        assert name in caught.value.what
    assert f"unset {' '.join(present)};" in str(caught.value.fix)


@pytest.mark.parametrize("change", [{"LOCAL_RANK": "x"}, {"MASTER_PORT": "http"}, {"RANK": "2"}, {"RANK": "one"}])
def test_values_that_make_no_sense_are_refused(change: dict[str, str]) -> None:
    (name,) = change
    with pytest.raises(UsageError, match=name):
        joined_world(WHOLE | change)


@pytest.fixture
def files(tmp_path: Path) -> GroupLayout:
    return GroupLayout(make_dir(tmp_path / "joined-n1-29500"))


def answer(files: GroupLayout, world_size: int) -> GroupSpec:
    """What rank 0 does."""
    clear(files)
    spec = nothing_to_do("joined-n1-29500", files.root, gather(files, world_size, patience_s=20))
    write_record(files.spec, spec)
    return spec


def test_a_world_that_starts_again_at_once_takes_no_spec_of_the_one_before(files: GroupLayout) -> None:
    """Ranks of the new world look at a folder with a spec written a moment ago, and at the nonces of ranks that are gone."""
    old = nothing_to_do("joined-n1-29500", files.root, ("a" * 32, "b" * 32))
    write_record(files.spec, old)
    for rank, nonce in enumerate(old.members, start=1):
        files.joining(rank).write_text(nonce)
    with pytest.raises(MissingError, match="rank 0 has not written"):
        join(files, 1, patience_s=0.3)
    found: dict[int, GroupSpec] = {}
    ranks = [
        threading.Thread(target=lambda rank=rank: found.update({rank: join(files, rank, patience_s=20)}))
        for rank in (1, 2)
    ]
    for thread in ranks:
        thread.start()
    new = answer(files, 3)
    for thread in ranks:
        thread.join()
    assert found == {1: new, 2: new}
    assert not set(new.members) & set(old.members)
    assert len(set(new.members)) == 2


def test_ranks_that_do_not_come_are_named(files: GroupLayout) -> None:
    files.joining(2).write_text("c" * 32)
    with pytest.raises(MissingError, match="ranks 1 and 3 of 4"):
        gather(files, 4, patience_s=0.2)
    assert gather(files, 4, patience_s=0) == ("", "c" * 32, "")


def test_a_rank_whose_place_is_taken_leaves(files: GroupLayout) -> None:
    taker = threading.Timer(0.2, lambda: files.joining(1).write_text("d" * 32))
    taker.start()
    with pytest.raises(MissingError, match="another process joins"):
        join(files, 1, patience_s=20)
