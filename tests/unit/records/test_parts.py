"""Whoever records, shows or names parts of a step has them from one declaration."""

from __future__ import annotations

from dataclasses import fields

from stepscope.records.parts import COLOURS, INSIDE, LATE, LEAVES, OUTSIDE, RECORDED, SAMPLED, STEP, TITLES, below
from stepscope.records.profile import COLUMNS
from stepscope.records.samples import PHASES, StepSample
from stepscope.report import vega
from stepscope.results.figures import figures_of
from stepscope.store.diary import DTYPE


def test_parts_are_a_tree_whose_leaves_come_in_step_order() -> None:
    keys = [part.key for part in STEP]
    assert len(set(keys)) == len(keys)
    parents = {part.parent for part in STEP} - {None}
    assert parents <= set(keys)
    assert all(keys.index(part.parent) < keys.index(part.key) for part in STEP if part.parent is not None)
    assert [key for key in keys if not below(key)] == list(LEAVES)


def test_recorders_have_the_columns_that_parts_name() -> None:
    assert {f"{column}_ns" for column in RECORDED} <= set(COLUMNS) <= set(DTYPE.names or ())
    assert set(SAMPLED) == set(PHASES) <= {field.name.removesuffix("_ns") for field in fields(StepSample)}


def test_each_leaf_is_drawn_and_named_and_what_is_a_figure_has_its_title() -> None:
    assert set(LEAVES) <= COLOURS.keys() & TITLES.keys()
    assert all(vega.color(colour) for colour in COLOURS.values())
    steps = {figure.value: figure.title for figure in figures_of("steps").values()}
    titles = {part.key: part.title for part in STEP if part.column is not None and part.figure}
    assert len(titles) >= 5
    assert titles.items() <= steps.items()


def test_a_rank_stands_still_or_is_late_in_parts_of_the_step() -> None:
    assert INSIDE.keys() <= {part.key for part in STEP} | OUTSIDE.keys()
    assert LATE.keys() <= {part.key for part in STEP if part.sample or part.column}
