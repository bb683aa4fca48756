"""Keys as other tools call them, whole numbers written as 8.0, and where a step count is asked for."""

from __future__ import annotations

import pytest

from stepscope.matrix.keys import CellSettings, validate
from stepscope.matrix.matrix_file import unknown_cell_key

CELL = {"workload": "mlp", "dataset": "synthetic", "strategy": "ddp", "world_size": 2, "global_batch": 8, "steps": 3}


@pytest.mark.parametrize(
    ("foreign", "here"),
    [
        ("ranks", "world_size"), ("nproc", "world_size"), ("nproc-per-node", "world_size"), ("gpus", "world_size"),
        ("learning_rate", "lr"), ("batch_size", "global_batch"), ("max_steps", "steps (a number, or auto)"),
        ("num_epochs", "epochs"), ("workers", "num_workers"), ("backend", "launch.backend"), ("warmup", "measure.warmup"),
    ],
)  # fmt: skip
def test_a_key_of_another_tool_is_named_as_it_is_called_here(foreign: str, here: str) -> None:
    assert f"unknown key {foreign!r}: stepscope calls it {here}" in unknown_cell_key(foreign)


def test_a_mistyped_key_is_answered_with_the_nearest_one_and_no_long_list() -> None:
    assert unknown_cell_key("acumulation") == "unknown key 'acumulation'; did you mean 'accumulation'?"


@pytest.mark.parametrize("key", ["world_size", "global_batch", "steps", "seed"])
def test_a_whole_number_written_with_a_point_is_that_number(key: str) -> None:
    made = validate(CellSettings, {**CELL, key: 4.0}, kind="key")
    assert isinstance(made, CellSettings)
    assert getattr(made, key) == 4
    assert isinstance(getattr(made, key), int)


def test_half_a_rank_is_refused_and_a_rate_stays_a_number() -> None:
    (complaint,) = validate(CellSettings, {**CELL, "world_size": 1.5}, kind="key")  # type: ignore[misc]
    assert complaint.message == "expected a whole number of ranks, at least 1, found 1.5"
    made = validate(CellSettings, {**CELL, "lr": 1.0}, kind="key")
    assert isinstance(made, CellSettings)
    assert isinstance(made.lr, float)


def test_auto_epochs_name_the_key_that_takes_auto() -> None:
    settings = {key: value for key, value in CELL.items() if key != "steps"}
    (complaint,) = validate(CellSettings, {**settings, "epochs": "auto"}, kind="key")  # type: ignore[misc]
    assert "only `steps` takes auto" in complaint.message
