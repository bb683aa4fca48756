"""A collective that not every rank calls, or not with the same tensor: named from the ranks' flight recorders, in time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.e2e.runs import Cli, Done, by_cell, status_of

from stepscope.store.importers.flight_recorder import read_folder

pytestmark = [pytest.mark.e2e, pytest.mark.dist, pytest.mark.timeout(200)]

EXPECTED = {
    "other_op": ("timeout", "rank 1 called broadcast [", "rank 0 all_reduce ["),
    "other_size": ("killed", "rank 1 called all_reduce [", "rank 0 all_reduce ["),
}


@pytest.fixture(scope="module")
def hangs(shared_cli: Cli) -> tuple[Done, Path]:
    """One run with every fault on the second of two ranks, each in a worker group of its own."""
    (shared_cli.folder / "matrix.yaml").write_text(
        "version: 1\n"
        "base: {workload: faulty, model: {at: 4}, dataset: synthetic, dataset_options: {samples: 512}, lr: 0.05,\n"
        "       global_batch: 32, steps: 20, strategy: naive, world_size: 2}\n"
        f"axes: {{model.kind: {json.dumps(list(EXPECTED))}}}\n"
        "measure: {warmup: 2, budget_s: 5, timeout_s: 15}\n"
    )
    return shared_cli("bench", "matrix.yaml", "-o", "run"), shared_cli.folder / "run"


@pytest.mark.parametrize("kind", EXPECTED)
def test_the_reason_names_the_rank_the_collective_and_what_the_others_called(
    kind: str, hangs: tuple[Done, Path]
) -> None:
    done, run = hangs
    assert done.code == 5, done.err
    status, ours, theirs = EXPECTED[kind]
    record = status_of(run, by_cell(run)[kind])
    assert record["status"] == status, record
    assert ours in record["reason"]
    assert theirs in record["reason"]
    assert "of the default group" in record["reason"]
    assert "float32" in record["reason"]


def test_the_rank_that_called_something_else_is_the_failing_rank(hangs: tuple[Done, Path]) -> None:
    _, run = hangs
    assert status_of(run, by_cell(run)["other_op"])["failing_rank"] == 1


@pytest.mark.parametrize("kind", EXPECTED)
def test_every_rank_leaves_its_calls_in_the_cells_folder(kind: str, hangs: tuple[Done, Path]) -> None:
    _, run = hangs
    folder = read_folder(run / "cells" / by_cell(run)[kind]["cell_id"] / "flight")
    assert [d.rank for d in folder.dumps] == [0, 1]
    assert all(d.entries and d.groups[0].ranks == (0, 1) for d in folder.dumps)
    assert not folder.refused
