"""Facts that users state: spelled, matched to runs, refused where they fit none or several."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.evidence import run

from stepscope.core.errors import UsageError
from stepscope.records.imported import Stated
from stepscope.store.stated import parse_world_sizes, require_known, stated_of_source, stated_ranks, with_stated

FOLDERS = {
    "exp020": "exp020_imdb_single",
    "exp021": "exp021_imdb_ddp",
    "exp044": "exp044_agnews_ddp",
}


def runs(**ranks: int) -> tuple:
    return tuple(
        run(key, ranks=ranks.get(key), settings={"experiment": name}, missing={"world_size": "why"})
        for key, name in FOLDERS.items()
    )


def test_several_and_names_with_equal_signs() -> None:
    assert parse_world_sizes("exp021=4, exp044=16") == {"exp021": 4, "exp044": 16}
    assert parse_world_sizes("lr=0.1=2") == {"lr=0.1": 2}
    assert parse_world_sizes("a=2,a=2") == {"a": 2}
    assert parse_world_sizes(" 8 ") == {"": 8}


def test_a_number_alone_is_of_the_only_run() -> None:
    (found,) = with_stated(runs()[:1], Stated(world_size={"": 8}))
    assert found.world_size == 8
    with pytest.raises(UsageError, match="--world-size 8 fits 3 runs") as caught:
        with_stated(runs(), Stated(world_size={"": 8}))
    assert "which of them" in (caught.value.why or "")


def test_a_name_with_its_source_is_of_that_source_alone() -> None:
    names = ["x/run", "y/run"]
    stated = Stated(world_size={"x/run/log": 8, "y/run": 16, "other": 2})
    assert stated_of_source(stated, "x/run", names).world_size == {"log": 8, "other": 2}
    assert stated_of_source(stated, "y/run", names).world_size == {"y/run/": 16, "other": 2}
    (found,) = with_stated(runs()[:1], stated_of_source(stated, "y/run", names))
    assert found.world_size == 16


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "it is empty"),
        ("4,2", "'4' is not NAME=RANKS"),
        ("0", "'0' is not a number of ranks"),
        ("exp021", "'exp021' is not NAME=RANKS"),
        ("exp021=4,", "nothing between two commas"),
        ("=4", "'=4' is not NAME=RANKS"),
        ("exp021=four", "'four' is not a number of ranks"),
        ("exp021=", "'' is not a number of ranks"),
        ("exp021=0", "'0' is not a number of ranks"),
        ("exp021=-4", "'-4' is not a number of ranks"),
        ("exp021=2.5", "'2.5' is not a number of ranks"),
        ("exp021=²", "'²' is not a number of ranks"),
        ("a=2,a=4", "gives a twice: 2 and 4"),
    ],
)
def test_typing_mistakes_say_what_and_how(text: str, what: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_world_sizes(text)
    assert what in caught.value.what
    assert caught.value.fix


@pytest.mark.parametrize("name", ["exp044", "exp044_agnews_ddp", "agnews", "AGNEWS", "044"])
def test_by_id_by_folder_and_by_a_unique_part(name: str) -> None:
    found = {r.run_id: r for r in with_stated(runs(), Stated(world_size={name: 4}))}
    assert found["exp044"].world_size == 4
    assert found["exp044"].missing == {}
    assert found["exp021"].world_size is None
    assert found["exp021"].missing == {"world_size": "why"}


def test_an_exact_id_wins_over_a_part() -> None:
    both = (run("exp1", ranks=None), run("exp10", ranks=None))
    assert [r.world_size for r in with_stated(both, Stated(world_size={"exp1": 4}))] == [4, None]


def test_a_part_of_several_names_them() -> None:
    with pytest.raises(UsageError) as caught:
        with_stated(runs(), Stated(world_size={"imdb": 4}))
    assert "fits 2 runs: exp020, exp021" in caught.value.what
    assert caught.value.fix == "name each run: --world-size exp020=4,exp021=4"


def test_two_numbers_for_one_run_are_refused() -> None:
    with pytest.raises(UsageError, match="gives exp044 twice: 4 and 8"):
        with_stated(runs(), Stated(world_size={"exp044": 4, "agnews": 8}))


def test_a_name_that_fits_nothing_is_left_to_the_check_over_all_sources() -> None:
    stated = Stated(world_size={"exp0444": 4})
    assert [r.world_size for r in with_stated(runs(), stated)] == [None] * 3
    with pytest.raises(UsageError) as caught:
        require_known(runs(), stated)
    assert "did you mean 'exp044'?" in caught.value.what
    assert caught.value.why == "there are: exp020, exp021, exp044"


def test_no_runs_at_all_is_said() -> None:
    with pytest.raises(UsageError, match="no training runs at all"):
        require_known((), Stated(world_size={"x": 4}))


def test_what_files_say_is_not_overruled() -> None:
    known = runs(exp020=1)
    require_known(known, Stated(world_size={"exp020": 1}))
    for check in (with_stated, require_known):
        with pytest.raises(UsageError, match="exp020=4 contradicts"):
            check(known, Stated(world_size={"exp020": 4}))


def test_scaling_is_for_all_runs() -> None:
    found = with_stated((run("a", scaling=None, missing={"scaling": "why"}),), Stated(scaling="weak"))
    assert (found[0].scaling, found[0].missing) == ("weak", {})


@pytest.mark.parametrize("name", ["results/day.log", "day.log", "day", "day.log/"])
def test_a_file_name_is_of_its_only_run_with_or_without_its_ending(name: str) -> None:
    only = (replace(runs()[0], source="results/day.log:12"),)
    stated = Stated(world_size={name: 8})
    assert with_stated(only, stated)[0].world_size == 8
    require_known(only, stated)


def test_a_file_of_several_runs_and_another_files_name_are_no_run() -> None:
    several = [replace(run, source="day.csv") for run in runs()]
    with pytest.raises(UsageError, match=r"day\.csv=8 fits 3 runs"):
        with_stated(several, Stated(world_size={"day.csv": 8}))
    with pytest.raises(UsageError, match=r"no run has 'ay\.csv'"):
        require_known(several, Stated(world_size={"ay.csv": 8}))


@pytest.mark.parametrize(("name", "fits"), [("b/all_gather.txt", True), ("all_gather", True), ("", True), ("c", False)])
def test_a_table_of_collectives_has_a_name_too(name: str, fits: bool) -> None:
    stated, title, path = Stated(world_size={name: 8}), "all_gather.txt", "b/all_gather.txt"
    assert stated_ranks(title, path, stated, listed=False) == (8 if fits else None)
    if fits:
        require_known((), stated, [(title, path)])
    assert stated_ranks(title, path, Stated(world_size={"": 8}), listed=True) is None
