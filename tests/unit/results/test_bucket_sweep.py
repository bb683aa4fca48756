"""Measured bucket sizes: the fastest, and what makes both ends slow."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.bench_evidence import MS, bench, made

from stepscope.records.training import Measured
from stepscope.report.views.buckets import bucket_sweep_table
from stepscope.results.sweeps import bucket_sweeps

MODEL = {"depth": 16, "width": 512, "bias": False}
"""16 weights of 1 MiB."""

STEPS = {1: 140.0, 4: 100.0, 16: 120.0}
"""ms by bucket size in MiB."""


def cells(steps: dict[int, float], exposed: dict[int, float] | None = None) -> list[object]:
    return [
        made(
            f"b{cap}", workload="deep_mlp", model=MODEL, loss="mse", strategy="ddp", world_size=2,
            strategy_options={"bucket_cap_mb": cap}, comm_ms=(exposed or {}).get(cap, 1.0),
            phases={"forward": ms - 67.0 - (exposed or {}).get(cap, 1.0), "backward_compute": 60.0},
        )
        for cap, ms in steps.items()
    ]  # fmt: skip


def test_both_ends_are_explained_by_what_was_measured() -> None:
    (sweep,) = bucket_sweeps(bench(*cells(STEPS, {1: 5.0, 4: 2.0, 16: 30.0})).cells)  # type: ignore[arg-type]
    assert [size.cap_mb for size in sweep.sizes] == [1.0, 4.0, 16.0]
    assert sweep.best.cap_mb == 4.0
    least, most = sweep.sizes[0], sweep.sizes[-1]
    assert (len(least.buckets), sweep.gradient_bytes) == (16, 16 * 2**20)
    assert len(most.buckets) < len(sweep.best.buckets) < len(least.buckets)
    assert sweep.best.step.below(least.step)
    assert least.step.value / sweep.best.step.value == pytest.approx(1.4, rel=0.02)
    assert most.exposed_ns - sweep.best.exposed_ns == pytest.approx(28 * MS, rel=0.1)
    table = bucket_sweep_table(bench(*cells(STEPS)).cells)  # type: ignore[arg-type]
    keys = [column.key for column in table.columns]
    assert [row.values[keys.index("buckets")].raw for row in table.rows] == [len(s.buckets) for s in sweep.sizes]
    small = next(line for line in table.footnotes if line.startswith("1 MiB"))
    more = len(least.buckets) - len(sweep.best.buckets)
    assert f"each of the {more} more" in small


def test_what_is_not_clearly_slower_shares_the_first_place_and_gets_no_cause() -> None:
    (sweep,) = bucket_sweeps(bench(*cells({1: 100.1, 4: 100.0, 16: 140.0})).cells)  # type: ignore[arg-type]
    assert (sweep.fastest_mb.value, sweep.fastest_mb.low, sweep.fastest_mb.high) == (4, 1, 4)
    table = bucket_sweep_table(bench(*cells({1: 100.1, 4: 100.0, 16: 100.2})).cells)  # type: ignore[arg-type]
    assert sum("not clearly slower" in line for line in table.footnotes) == 2
    assert not any("the step grows" in line for line in table.footnotes)


def test_too_few_steps_for_an_interval_leave_doubt() -> None:
    (sweep,) = bucket_sweeps(bench(*cells(STEPS)).cells)  # type: ignore[arg-type]
    least = sweep.sizes[0]
    assert sweep.best.step.below(least.step)
    assert (sweep.fastest_mb.low, sweep.fastest_mb.high) == (4, 4)
    short = replace(least, step=Measured(value=least.step.value))
    assert sweep.best.step.below(short.step) is None
    assert replace(sweep, sizes=(short, *sweep.sizes[1:])).fastest_mb == Measured(value=4.0)


def test_two_sizes_are_no_sweep() -> None:
    assert bucket_sweeps(bench(*cells({1: 140.0, 4: 100.0})).cells) == ()  # type: ignore[arg-type]


def test_cells_of_a_workload_that_is_not_installed_are_left_out() -> None:
    found = bench(*cells(STEPS)).cells  # type: ignore[arg-type]
    gone = [replace(c, result=replace(c.result, spec=replace(c.spec, workload="of_a_plugin"))) for c in found]
    assert bucket_sweeps(gone) == ()
    assert len(bucket_sweeps((*found, *gone))) == 1
