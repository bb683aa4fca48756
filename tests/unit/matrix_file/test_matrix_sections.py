"""Sections of a matrix: what their names are, what a cell in two of them is, and the sweep that comes beside the cells."""

from __future__ import annotations

import pytest
from tests.matrix_files import build, refused
from tests.unit.matrix_file.test_matrix import BASE

SECTIONED = (
    BASE
    + """
include:
  - {section: [speed, growth], strategy: single, world_size: 1}
  - {section: growth, strategy: ddp, axes: {world_size: [2, 3]}}
  - {strategy: naive, world_size: 2}
"""
)


def test_sections_are_those_of_the_includes_in_file_order_and_the_sweep_comes_first() -> None:
    matrix = build(SECTIONED)
    assert matrix.sections == ("speed", "growth")
    assert [cell.sections for cell in matrix.cells] == [("speed", "growth"), ("growth",), ("growth",), ()]
    assert build(SECTIONED + "comm: {ops: all_reduce}").sections == ("comm", "speed", "growth")


def test_a_sweep_alone_makes_no_sections() -> None:
    matrix = build(BASE + "axes: {strategy: [ddp], world_size: [2]}\ncomm: {ops: all_reduce, budget_s: 0.5}")
    assert matrix.sections == ()
    assert matrix.comm is not None
    assert (matrix.comm.ops, matrix.comm.budget_s, matrix.comm.pairs) == ("all_reduce", 0.5, False)


def test_a_section_is_no_key_of_a_cell() -> None:
    plain = build(SECTIONED.replace("section: growth, ", ""))
    assert [cell.settings for cell in plain.cells] == [cell.settings for cell in build(SECTIONED).cells]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (SECTIONED.replace("section: growth", "section: comm"), "include[1].section"),
        (SECTIONED.replace("section: growth", "section: [growth, 3]"), "include[1].section"),
        (SECTIONED.replace("section: growth", "section: two words"), "include[1].section"),
        (SECTIONED + "comm: {opps: all_reduce}", "comm.opps"),
        (SECTIONED + "comm: {budget_s: 0}", "comm.budget_s"),
    ],
)
def test_a_mistake_is_said_at_its_place(text: str, path: str) -> None:
    (line,) = refused(text)
    assert path in line


def test_the_sweep_can_be_changed_from_the_command_line() -> None:
    matrix = build(SECTIONED + "comm: {ops: all_reduce}", "comm.sizes=1K:4K:2", "comm.pairs=true")
    assert matrix.comm is not None
    assert (matrix.comm.sizes, matrix.comm.pairs) == ("1K:4K:2", True)
