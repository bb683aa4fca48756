"""``bench --model`` and ``python:`` workloads on real ranks: the examples of examples/models.py, and a changed model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.e2e.runs import Cli, Done, results

pytestmark = [pytest.mark.e2e, pytest.mark.dist, pytest.mark.timeout(300)]

EXAMPLES = Path(__file__).parents[2] / "examples"
MATRIX = """
version: 1
base: {workload: "python:models:cnn", model: {width: 4}, micro_batch: 2, steps: 3, world_size: 2}
axes: {strategy: [naive]}
include:
  - {strategy: single, world_size: 1}
  - {workload: "python:models:decoder", model: {width: 8, layers: 1}, strategy: ddp, accumulation: 2}
  - {workload: "python:models:decoder", model: {width: 8, layers: 1}, strategy: bucketed, precision: bf16}
measure: {warmup: 3, budget_s: 5, timeout_s: 60}
launch: {threads_per_rank: 1}
"""


def examples_in(folder: Path) -> None:
    for name in ("models.py", "decoder.py"):
        shutil.copy(EXAMPLES / name, folder)


@pytest.fixture(scope="module")
def ran(shared_cli: Cli) -> tuple[Done, Path]:
    examples_in(shared_cli.folder)
    (shared_cli.folder / "own.yaml").write_text(MATRIX)
    done = shared_cli("bench", "own.yaml", "-o", "own", "--json", "--profile")
    return done, shared_cli.folder / "own"


def test_every_cell_is_measured_and_its_plan_is_what_the_ranks_sent(ran: tuple[Done, Path]) -> None:
    done, run = ran
    assert done.code == 0, done.err
    rows = results(run)
    assert len(rows) == 4
    for row in rows:
        assert row["status"] == "ok"
        cell = run / "cells" / row["cell_id"]
        for rank in range(row["world_size"]):
            summary = json.loads((cell / f"rank-{rank:05d}.json").read_text())
            assert summary["plan_check"]["matches"], summary["plan_check"]
            assert (cell / summary["trace_file"]).exists()
            assert summary["num_parameters"] == row["num_parameters"]
            assert summary["backward"]["unused"] == []


def test_sizes_are_those_of_the_module(ran: tuple[Done, Path]) -> None:
    sent = {(row["workload"], row["strategy"]): row for row in results(ran[1])}
    cnn = sent["python:models:cnn", "naive"]
    assert cnn["comm_bytes_per_step"] == 4 * cnn["num_parameters"]
    half = sent["python:models:decoder", "bucketed"]
    assert half["comm_bytes_per_step"] == 2 * half["num_parameters"]
    spec = json.loads((ran[1] / "cells" / half["cell_id"] / "spec.json").read_text())
    assert spec["optimizer"] == "own"
    assert spec["facts"]["optimizer_bytes"] == 2 * 2 * half["num_parameters"]  # AdamW: two numbers of bfloat16 each


@pytest.mark.long
def test_a_run_is_resumed_and_a_changed_model_is_a_new_cell(cli: Cli) -> None:
    examples_in(cli.folder)
    line = ["bench", "--model", "models:cnn", "--batch", "4", "--strategies", "single", "--ranks", "1"]
    line += ["--set", "base.model.width=4", "--steps", "3", "--warmup", "1", "-o", "own"]
    assert cli(*line).code == 0
    again = cli(*line, "--plan", "--json").json()["cells"]
    assert [cell["kept"] for cell in again] == ["ok"]
    with (cli.folder / "decoder.py").open("a") as file:
        file.write("\n# changed\n")
    refused = cli(*line)
    assert refused.code == 2
    assert "none of its 1 measured cell is in this one" in refused.err
    (changed,) = cli(*line, "--plan", "--json", "--force").json()["cells"]
    assert changed["kept"] is None
    assert changed["spec"]["cell_id"] != again[0]["spec"]["cell_id"]


@pytest.mark.long
def test_a_module_without_batches_is_trained_on_random_samples(cli: Cli) -> None:
    (cli.folder / "nets.py").write_text(
        "from torch import nn\ndef build():\n    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 5))\n"
    )
    done = cli(
        "bench", "--model", "nets:build", "--input", "3x8x8", "--ranks", "1,2", "--batch", "4", "--steps", "3",
        "--warmup", "2", "-o", "own", "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert {(row["strategy"], row["world_size"]) for row in done.json()["cells"]} == {("single", 1), ("ddp", 2)}


def test_a_broken_model_is_one_error_and_leaves_no_run(cli: Cli) -> None:
    (cli.folder / "nets.py").write_text("from torch import nn\ndef build():\n    return nn.Linear(wide, 5)\n")
    done = cli("bench", "--model", "nets:build", "--input", "3", "-o", "own")
    assert done.code == 2
    assert "Traceback" not in done.err
    assert "nets.py:3, in build: return nn.Linear(wide, 5)" in done.err
    assert not (cli.folder / "own").exists()
