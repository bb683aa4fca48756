"""The one-rank baseline of a cell."""

from __future__ import annotations

import pytest
from tests.matrices import plan

from stepscope.matrix.expand import PlannedCell
from stepscope.records.cell import CellSpec
from stepscope.results.runs import labelled, planned_run
from stepscope.results.scaling import find_baseline


def specs(cells: tuple[PlannedCell, ...]) -> list[CellSpec]:
    return [c.spec for c in cells]


def baseline_of(cells: list[CellSpec], strategy: str, world_size: int) -> CellSpec | None:
    runs = labelled([planned_run(cell) for cell in cells])
    run = next(r for r in runs if (r.strategy_key, r.world_size) == (strategy, world_size))
    found = find_baseline(run, runs)
    return None if found is None else next(c for c in cells if c.cell_id == found.run_id)


BOTH = "axes: {strategy: [naive, ddp], world_size: [1, 2]}\ninclude: [{strategy: single, world_size: 1}]"


def test_single_is_preferred_over_the_strategys_own_one_rank_cell() -> None:
    found = baseline_of(specs(plan(BOTH)), "ddp", 2)
    assert found is not None
    assert (found.strategy, found.world_size) == ("single", 1)


def test_without_single_the_same_strategy_on_one_rank_serves() -> None:
    found = baseline_of(specs(plan(BOTH, "include=[]")), "ddp", 2)
    assert found is not None
    assert (found.strategy, found.world_size) == ("ddp", 1)


def test_a_one_rank_cell_has_none() -> None:
    assert baseline_of(specs(plan(BOTH)), "ddp", 1) is None


@pytest.mark.parametrize(
    "change",
    ["precision: bf16", "seed: 2", "lr: 0.5", "accumulation: 2", "optimizer: adam", "model.width: 9",
     "dataset_options.samples: 65", "global_batch: 96", "num_workers: 1", "env.OMP_PROC_BIND: close"],
)  # fmt: skip
def test_a_baseline_that_differs_in_anything_that_counts_is_none(change: str) -> None:
    text = f"include: [{{strategy: single, world_size: 1, {change}}}, {{strategy: ddp, world_size: 2}}]"
    assert baseline_of(specs(plan(text)), "ddp", 2) is None


@pytest.mark.parametrize("change", ["env.NCCL_ALGO: Ring", "env.GLOO_SOCKET_IFNAME: lo", "steps: 20"])
def test_what_one_rank_cannot_feel_does_not_matter(change: str) -> None:
    text = f"include: [{{strategy: single, world_size: 1}}, {{strategy: ddp, world_size: 2, {change}}}]"
    assert baseline_of(specs(plan(text)), "ddp", 2) is not None


def test_strong_scaling_compares_equal_global_batches_and_weak_equal_micro_batches() -> None:
    strong = specs(plan(BOTH))
    weak = specs(plan(BOTH, "base.micro_batch=24"))
    assert {planned_run(c).scaling for c in strong} == {"strong"}
    assert {planned_run(c).scaling for c in weak} == {"weak"}
    found = baseline_of(strong, "ddp", 2)
    assert found is not None
    assert (found.global_batch, found.micro_batch) == (48, 48)
    found = baseline_of(weak, "ddp", 2)
    assert found is not None
    assert (found.global_batch, found.micro_batch) == (24, 24)
    # a strong cell never takes a weak one for its baseline, whatever the numbers are
    pair = [c for c in strong if c.world_size == 2] + [c for c in weak if c.world_size == 1]
    assert baseline_of(pair, "ddp", 2) is None
