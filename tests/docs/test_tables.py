"""Tables of the documents that repeat declarations of the code: generated from them, or held against them cell by cell.

A generated table stands after ``<!-- table: NAME -->``; ``TABLES`` says which document has it and what its rows are.
``STEPSCOPE_RENEW_DOCS=1`` writes it anew.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from itertools import chain
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml
from tests.documents import ROOT

from stepscope.api import event_tables
from stepscope.cli.command import EXIT_CODES
from stepscope.core.errors import ExitCode
from stepscope.core.units import format_percent
from stepscope.diagnose.rules import REGISTRY
from stepscope.matrix.keys import RIVALS, CellSettings, CommSection, LaunchSettings, MeasureOptions
from stepscope.records import trace_quality
from stepscope.records.options import OptionsModel
from stepscope.records.parts import STEP
from stepscope.records.profile import COLUMNS
from stepscope.records.training import TrainingRun
from stepscope.results.figures import FIGURES, Figure
from stepscope.results.run_figures import BENCH
from stepscope.stats import compare
from stepscope.traces import captures, classes, quality

Row = tuple[str, ...]


def _quality() -> Iterable[Row]:
    letters = {"rank": "R", "count": "N", "of": "M", "time": "T", "share": "S", "names": "NAMES"}
    for name, kind in trace_quality.KINDS.items():
        takes = "all" if len(kind.takes) == len(trace_quality.FIGURES) else ", ".join(kind.takes)
        yield f"`{name}`", kind.text.format(**letters), takes or "-", kind.better or "-"


def _taken() -> Iterable[Row]:
    rules = [REGISTRY.load(key) for key in sorted(REGISTRY.names())]
    for figure, text in trace_quality.FIGURES.items():
        resting = [f"`{rule.name}`" for rule in rules if figure in rule.rests_on]
        yield figure, text, ", ".join(resting) or "-"


TABLES: Mapping[str, tuple[str, Row, Callable[[], Iterable[Row]]]] = {
    "exit codes": ("docs/reference/bench.md", ("exit code", "when"), EXIT_CODES.items),
    "figures": (
        "docs/reference/metrics.md",
        ("figure", "of", "title", "unit", "range", "better", "what it is"),
        lambda: ((f"`{f.key}`", f.of, f.title, f.unit, _range(f), f.better, f.help) for f in FIGURES),
    ),
    "quality": (
        "docs/reference/trace.md",
        ("fact", "what is said (R a rank, N of M, T a time, S a share)", "takes away", "a better trace"),
        _quality,
    ),
    "figures taken away": ("docs/reference/trace.md", ("figure", "what it is", "rules that are not asked"), _taken),
    "inputs of the action": (
        "docs/howto/gate-a-pull-request.md",
        ("input", "what it is", "default"),
        lambda: [
            (f"`{name}`", each["description"], f"`{each['default']}`" if each["default"] else "")
            for name, each in yaml.safe_load((ROOT / "action.yml").read_text())["inputs"].items()
        ],
    ),
    "parts": (
        "docs/reference/metrics.md",
        ("part", "column", "definition"),
        lambda: ((part.title, f"`{part.column}`", part.what) for part in STEP if part.column and part.what),
    ),
    "event tables": (
        "docs/reference/python.md",
        ("name", "rows"),
        lambda: ((f"`{name}`", f"{_doc(table.columns)}") for name, table in event_tables.TABLES.items()),
    ),
    "columns of a diary": ("docs/reference/formats.md", ("columns, by name",), lambda: [(f"`{', '.join(COLUMNS)}`",)]),
    "columns of cells": ("docs/reference/formats.md", ("columns, in order",), lambda: [(f"`{', '.join(BENCH)}`",)]),
}
"""Name of a table -> (its document, its titles, its rows)."""


def _doc(function: Callable[..., object]) -> str:
    return " ".join(str(function.__doc__).replace("``", "`").split())


def _range(figure: Figure) -> str:
    low, high = figure.range
    return "any" if low == -math.inf else f"from {low:g}" if high == math.inf else f"{low:g} to {high:g}"


def markdown(titles: Row, rows: Iterable[Row]) -> str:
    """A table as the documents write it; a bar inside a cell is escaped."""
    lines = [titles, ("---",) * len(titles), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    written = [
        "|" + "|".join(line) + "|" if number == 1 else f"| {' | '.join(line)} |" for number, line in enumerate(lines)
    ]
    return "\n".join(written) + "\n"


@pytest.mark.parametrize("name", TABLES)
def test_a_table_says_what_the_code_declares(name: str) -> None:
    document, titles, rows = TABLES[name]
    text = (ROOT / document).read_text()
    found = re.search(rf"^<!-- table: {name} -->\n\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert found, f"{document} has no place for the table {name!r}"
    declared = markdown(titles, rows())
    if os.environ.get("STEPSCOPE_RENEW_DOCS"):
        (ROOT / document).write_text(text.replace(found[1], declared, 1))
    else:
        assert found[1] == declared


def test_limits_in_the_text_on_quality_are_those_of_the_code() -> None:
    text = " ".join((ROOT / "docs/reference/trace.md").read_text().split())
    for said in (
        f"matters from {format_percent(quality.LEAST_LOST)} of the launches",
        f"unknown kernels from {format_percent(classes.MOST_UNKNOWN)} of the kernels' time",
        f"by {format_percent(compare.CLEAR_EXCESS)} and by {compare.CLEAR_NOISE:g} times",
        f"of one step by {format_percent(compare.LONE_EXCESS)}",
        f"From {compare.LEAST_STEPS} steps on",
        f"begins {captures.APART_NS / 1e6:g} ms or more after",
        f"are {format_percent(captures.APART_SHARE)} of a rank's window",
    ):
        assert re.sub(r"\.0%", "%", said) in text


def test_every_field_of_a_run_is_documented() -> None:
    text = (ROOT / "docs/reference/formats.md").read_text()
    part = text.partition("stepscope schema training_run")[2].partition("Files of schema 1")[0]
    assert {field.name for field in fields(TrainingRun)} - set(re.findall(r"[a-z_]+", part)) == set()


def test_every_exit_code_is_explained() -> None:
    codes = {str(code) for name, code in vars(ExitCode).items() if name.isupper() and not name.startswith("SIG")}
    assert codes | {"128 + n"} == EXIT_CODES.keys()


SECTIONS: Mapping[str, type[OptionsModel]] = {
    "Keys of a cell": CellSettings,
    "launch": LaunchSettings,
    "measure": MeasureOptions,
}
"""Words of a heading in docs/reference/matrix.md -> what its table is about."""


def _rows(heading: str) -> dict[str, tuple[str, str, int]]:
    """Key -> (values, defaults of the row, the key's place in it)."""
    text = (ROOT / "docs/reference/matrix.md").read_text()
    part = next(part for part in re.split(r"^#+ ", text, flags=re.MULTILINE) if heading in part.partition("\n")[0])
    table = [line.strip("|").split(" | ") for line in part.splitlines() if line.startswith("| `")]
    return {
        key: (cells[1], cells[2].strip(), place)
        for cells in table
        for place, key in enumerate(re.findall(r"`([a-z_]+)`", cells[0]))
    }


def _words(annotation: Any) -> Iterable[str]:
    """What the ``Literal`` parts of a type take."""
    if get_origin(annotation) is Literal:
        return [word for word in get_args(annotation) if isinstance(word, str)]
    return chain.from_iterable(_words(each) for each in get_args(annotation))


def _shown(default: object) -> str:
    """A default as YAML writes it."""
    if default is None or isinstance(default, bool):
        return {None: "null", True: "true", False: "false"}[default]
    return f"{default:g}" if isinstance(default, float) else str(default)


@pytest.mark.parametrize(
    ("heading", "key"), [(heading, key) for heading, kind in SECTIONS.items() for key in kind.model_fields]
)
def test_a_key_of_the_matrix_is_documented_with_its_words_and_default(heading: str, key: str) -> None:
    field = SECTIONS[heading].model_fields[key]
    values, defaults, place = _rows(heading)[key]
    assert [word for word in _words(field.annotation) if f"`{word}`" not in f"{values} {defaults}"] == []
    if field.is_required() or field.default_factory or key in chain(*RIVALS, ("mesh", "optimizer", "loss")):
        return  # the row says what decides
    each = [text.strip().strip("`") for text in defaults.split(",")]
    assert each[min(place, len(each) - 1)] == _shown(field.default)


def test_the_sweep_of_a_matrix_is_documented_with_its_keys() -> None:
    text = (ROOT / "docs/reference/matrix.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith("| `comm`"))
    assert [key for key in CommSection.model_fields if f"`{key}`" not in row] == []
