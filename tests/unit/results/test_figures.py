"""Every declared figure is where it must be, under one unit: declared twice, wrongly or not everywhere, it fails here."""

from __future__ import annotations

from collections import Counter

import pytest

from stepscope.cli.commands.schema import documents
from stepscope.report.conditions import parse_changes, parse_condition
from stepscope.report.views import runs as table
from stepscope.results.comparing import PARTS
from stepscope.results.figures import COMPARED, FIGURES, Figure, figures_of
from stepscope.results.run_figures import BENCH, COLUMNS, CSV

UNIT_OF_KEY = {
    "_ns": "ns", "_bytes": "bytes", "_bytes_per_step": "bytes", "_per_s": "per s", "_fraction": "fraction",
    "_accuracy": "fraction", "mfu": "fraction", "hfu": "fraction", "_count": "count", "_loss": "loss",
    "speedup": "ratio", "efficiency": "ratio", "_errors": "count", "_packets": "count",
}  # fmt: skip

START_OF_KEY = {"epoch_": "epoch", "trace_": "step", "diary_": "steps", "lowest_": "diagnosis", "largest_": "diagnosis"}

FOLLOW = {"best_accuracy", "comm_bytes_per_step", "speedup", "efficiency", "mfu", "hfu"}
"""Not compared: they follow from figures that are, or from how the run was made."""

NO_COLUMN = {"best_accuracy": "bench/1 has test_accuracy", "test_accuracy": "tables show the best"}


def test_no_key_and_no_column_is_declared_twice() -> None:
    lists = [
        [(each.of, each.key) for each in FIGURES],
        [each.key for each in FIGURES if each.of in ("run", "epoch", "collective", "step", "steps")],
        *([name for column in COLUMNS if (name := getattr(column, of))] for of in ("bench", "csv")),
    ]
    assert [name for names in lists for name, count in Counter(names).items() if count > 1] == []


def test_no_two_figures_of_a_kind_have_one_name_and_no_table_shows_a_column_twice() -> None:
    """A title alone says in a table which number it is; help is its row in the documents."""
    names = [(each.of, name) for each in FIGURES for name in {each.title, each.short or each.title}]
    shown = [(key, column) for key in ("CELLS", "PAPER", "PAGE") for column in getattr(table, key)]
    shown += [("columns", column.key) for column in table._run_columns((), {}, 1)]
    assert [name for name, count in Counter([*names, *shown]).items() if count > 1] == []
    assert [each.key for each in FIGURES if not each.title.strip() or not each.help.strip()] == []


@pytest.mark.parametrize("figure", FIGURES, ids=lambda each: f"{each.of}-{each.key}")
def test_a_figure_is_everywhere_under_its_unit(figure: Figure) -> None:
    assert {unit for ending, unit in UNIT_OF_KEY.items() if figure.key.endswith(ending)} == {figure.unit}
    kinds = {of for start, of in START_OF_KEY.items() if figure.key.startswith(start)}
    assert kinds == {figure.of} or (not kinds and figure.of not in ("epoch", "step", "steps"))
    low, _ = figure.range
    if figure.of in ("job", "diagnosis", "rank", "shares", "memory", "hardware"):
        known = figures_of(figure.of)
        assert parse_condition(f"{figure.key} > {max(low, 0.0)}", figures=known, rules=()).key == figure.key
    else:
        assert (figure.key in COMPARED) == figure.compared
        assert figure.of != "run" or figure.compared == (figure.key not in FOLLOW)
        assert not figure.compared or parse_changes([f"{figure.key} > 5%"], COMPARED)[0].key == figure.key
    if figure.of == "steps":
        assert figure.value in ("step", "outside", *PARTS) or callable(figure.value)
    if figure.of == "run":
        assert {column.bench for column in COLUMNS if column.value is figure} & BENCH.keys() or figure.key in NO_COLUMN
        assert {column.csv for column in COLUMNS if column.value is figure} & CSV.keys()
        shown = {column.key.removesuffix("_per_step") for column in table.build([], show=table.PAGE).columns}
        assert figure.key in shown or figure.key in (*NO_COLUMN, "comm_bytes_per_step")
        (schema,) = documents()["bench/1"]["cells"].__args__
        assert set(BENCH) == set(schema.__annotations__)
