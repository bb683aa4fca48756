"""Names of models, strategies and cells in tables, log lines and plans: no two cells of a run look the same."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from tests.unit.cells import cell_spec

from stepscope.records.cell import CellSpec
from stepscope.results.labels import cell_labels, varied_settings


def test_a_swept_number_is_shown_on_every_row_even_where_it_is_the_default(fakes) -> None:
    rows = [fakes.row("c", strategy="bucketed", strategy_options={"bucket_cap_mb": cap}) for cap in (1.0, 25.0)]
    labels = cell_labels(rows)
    assert [label.strategy for label in labels] == ["bucketed bucket_cap_mb=1", "bucketed bucket_cap_mb=25"]


def specs(**swept: list[Any]) -> list[CellSpec]:
    crossed = [dict(zip(swept, values, strict=True)) for values in product(*swept.values())]
    return [cell_spec(cell_id=f"mlp-naive-w2-{n}", **changes) for n, changes in enumerate(crossed)]


def rows_of(fakes: Any, cells: list[CellSpec]) -> list[Any]:
    """The runs of cells, as results/runs.py makes them."""
    shared = ("strategy", "strategy_options", "precision", "world_size", "dataset", "model", "accumulation",
              "global_batch", "micro_batch")  # fmt: skip
    return [
        fakes.row(cell.cell_id, varied=varied, **{name: getattr(cell, name) for name in shared})
        for cell, varied in zip(cells, varied_settings(cells), strict=True)
    ]


@pytest.mark.parametrize(
    ("swept", "shown"),
    [
        ({"seed": [1, 2]}, ["naive seed=1", "naive seed=2"]),
        ({"lr": [0.1, 0.1000001]}, ["naive lr=0.1", "naive lr=0.1000001"]),
        ({"dataset_options": [{"samples": 64}, {"samples": 128}]}, ["naive samples=64", "naive samples=128"]),
        ({"dataset_options": [{"seed": 1}, {"seed": 2}]}, ["naive dataset_options.seed=1", "naive dataset_options.seed=2"]),
        ({"env": [{}, {"NCCL_ALGO": "Ring"}]}, ["naive", "naive NCCL_ALGO=Ring"]),
        ({"clip": [None, 1.0]}, ["naive", "naive clip=1"]),
        ({"pin_memory": [True, False]}, ["naive pin_memory", "naive pin_memory=off"]),
        ({"data_digest": ["x", "y"]}, ["naive id=0", "naive id=1"]),
        ({"precision": ["fp32", "bf16"]}, ["naive", "naive"]),
    ],
)  # fmt: skip
def test_a_swept_setting_without_a_column_is_part_of_the_mode(
    fakes: Any, swept: dict[str, list[Any]], shown: list[str]
) -> None:
    cells = specs(**swept)
    assert [label.mode for label in cell_labels(cells)] == shown
    assert [label.mode for label in cell_labels(rows_of(fakes, cells))] == shown


@pytest.mark.parametrize(
    "swept",
    [
        {"seed": [1, 2], "strategy": ["naive", "ddp"], "global_batch": [32, 64]},
        {"dataset": ["synthetic", "mnist"], "precision": ["fp32", "bf16"], "accumulation": [1, 2]},
        {"strategy_options": [{"flat": True}, {"flat": False}], "lr": [0.1, 0.2], "world_size": [2, 4]},
        {"model": [{"size": "tiny"}, {"size": "small"}], "optimizer": ["sgd", "adam"]},
    ],
)
def test_no_two_cells_of_a_run_have_the_same_line(fakes: Any, swept: dict[str, list[Any]]) -> None:
    cells = specs(**swept)
    for labels in (cell_labels(cells), cell_labels(rows_of(fakes, cells))):
        assert len({label.text for label in labels}) == len(cells)
        assert len({(label.model, label.name) for label in labels}) == len(cells)


def test_what_differs_only_along_with_something_shown_is_left_out() -> None:
    cells = [cell_spec(cell_id="a"), cell_spec(cell_id="b", strategy="single", world_size=1, lr=0.5, seed=7)]
    assert [label.text for label in cell_labels(cells)] == [
        "mlp tiny, naive, 2 ranks, fp32",
        "mlp tiny, single, 1 rank, fp32",
    ]
