"""``--set``."""

from __future__ import annotations

import pytest
from tests.matrix_files import build

from stepscope.core.errors import UsageError
from stepscope.matrix.overrides import Shortcut

TEXT = """
version: 1
base: {workload: net, dataset: noise, model: {size: small}, global_batch: 24, steps: 10, lr: on}
axes: {strategy: [naive, ddp], world_size: [2]}
include: [{strategy: single, world_size: 1}]
"""


def test_a_value_replaces_the_files_and_the_complaint_about_it() -> None:
    with pytest.raises(UsageError, match="boolean to some YAML readers"):
        build(TEXT)
    assert {d.settings.lr for d in build(TEXT, "base.lr=1e-3").cells} == {1e-3}


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        ("axes.world_size=[2, 3]", [2, 3, 2, 3, 1]),
        ("axes.strategy=[ddp]", [2, 1]),
        ("include=[]", [2, 2]),
        ("include.0.strategy=naive", [2, 2, 1]),
        ("exclude=[{strategy: single}]", [2, 2]),
    ],
)
def test_sections_lists_and_items_can_be_set(change: str, seen: list[int]) -> None:
    assert [d.settings.world_size for d in build(TEXT, "base.lr=0.1", change).cells] == seen


def test_dotted_options_reach_into_nested_groups() -> None:
    matrix = build(TEXT, "base.lr=0.1", "base.model.size=tiny", "axes.strategy_options.bucket_cap_mb=[1, 2]")
    assert {d.model.as_dict()["size"] for d in matrix.cells} == {"tiny"}
    assert [d.strategy_options.as_dict().get("bucket_cap_mb") for d in matrix.cells] == [None, None, 1, 2, None]


def test_setting_one_of_two_rivals_removes_the_other() -> None:
    (first, *_) = build(TEXT, "base.lr=0.1", "base.micro_batch=3", "base.epochs=2").cells
    assert (first.settings.global_batch, first.micro_batch, first.settings.steps) == (None, 3, None)
    (first, second, *_) = build(TEXT, "base.lr=0.1", "axes.micro_batch=[3, 4]", "include=[]").cells
    assert (first.micro_batch, second.micro_batch) == (3, 4)


def test_null_takes_a_value_away_and_nothing_else() -> None:
    (first, *_) = build(TEXT, "base.lr=null", "base.micro_batch=null", "base.epochs=null").cells
    assert (first.settings.lr, first.global_batch, first.settings.steps) == (0.01, 24, 10)


def test_later_overrides_win() -> None:
    assert build(TEXT, "base.lr=1", "base.lr=0.5").cells[0].settings.lr == 0.5


def test_launch_and_measure_can_be_set() -> None:
    matrix = build(TEXT, "base.lr=1", "launch.isolate=true", "launch.env.NCCL_DEBUG=INFO", "measure.budget_s=2")
    assert matrix.launch.isolate
    assert matrix.launch.env == {"NCCL_DEBUG": "INFO"}
    assert matrix.measure.budget_ns == 2_000_000_000


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ("base.lr", "expected PATH=VALUE"),
        ("=3", "expected PATH=VALUE"),
        ("base.lr=", "write base.lr=null"),
        ("base.lr=off", "write false"),
        ("base.lr=[1", "--set base.lr=[1:1:3"),
        ("bsae.lr=1", "did you mean 'base'"),
        ("lr=1", "did you mean 'base.lr'"),
        ("model.size=tiny", "did you mean 'base.model.size'"),
        ("budget_s=1", "did you mean 'measure.budget_s'"),
        ("base.world_siez=1", "did you mean 'world_size'"),
        ("axes.modle.size=[tiny]", "did you mean 'model'"),
        ("measure.budget=1", "did you mean 'budget_s'"),
        ("name.first=x", "no keys below it"),
        ("include.1.lr=1", "items 0 to 0"),
        ("include.x.lr=1", "items 0 to 0"),
        ("exclude.0.lr=1", "has no exclude"),
        ("base.world_size=2", "--set axes.world_size=[...]"),
        ("base.strategy=ddp", "has no effect"),
    ],
)
def test_a_path_or_value_that_makes_no_sense_is_refused_with_the_right_one(change: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        build(TEXT, "base.lr=0.1", change)
    assert hint in str(caught.value)


def test_mistakes_in_an_overrides_value_point_at_the_override() -> None:
    with pytest.raises(UsageError, match=r"--set axes.world_size=\[2, x\]: axes.world_size\[1\]: expected a whole"):
        build(TEXT, "base.lr=0.1", "axes.world_size=[2, x]")


@pytest.mark.parametrize(
    ("shortcut", "said"),
    [
        (Shortcut("--steps", "abc", "base.steps"), "--steps abc: expected a whole number of at least 1, or auto"),
        (Shortcut("--warmup", "-1", "measure.warmup"), "--warmup -1: expected a whole number of steps, or auto"),
        (Shortcut("--steps", "", "base.steps"), "--steps : the value is missing"),
        (Shortcut("--steps", "[1", "base.steps"), "--steps [1:1:3"),
    ],
)
def test_a_mistake_in_an_option_of_its_own_names_that_option(shortcut: Shortcut, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        build(TEXT, "base.lr=0.1", shortcut)
    assert said in str(caught.value)
    assert "--set base.steps=" not in str(caught.value)
    assert "measure.warmup" not in str(caught.value)


def test_an_option_of_its_own_sets_the_value() -> None:
    matrix = build(TEXT, "base.lr=0.1", Shortcut("--steps", "7", "base.steps"))
    assert {d.settings.steps for d in matrix.cells} == {7}
