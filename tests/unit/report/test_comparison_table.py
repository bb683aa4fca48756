from __future__ import annotations

import math
from dataclasses import replace

from tests.bench_evidence import bench, made
from tests.evidence import evidence, run, step

from stepscope.report.views.comparison import comparison_tables
from stepscope.results.comparing import Side, compare


def test_memory_is_in_the_unit_of_the_other_tables() -> None:
    one = replace(run("cell", ranks=2, step_ns=step(10)), peak_memory_bytes=340 * 2**20)
    sides = [Side(name=name, rounds=(evidence(one),)) for name in ("a", "b")]
    shown = [value.text for table in comparison_tables(compare(sides)) for row in table.rows for value in row.values]
    assert shown.count("340 MiB") == 2


def test_a_figure_that_is_a_median_of_replicates_says_so() -> None:
    """The run's own figure may be another: of all its steps, not of the medians of their blocks."""

    def own(rank: int, step: int, phases: dict[str, float]) -> None:  # noqa: ARG001
        phases["forward"] += 20.0 * math.sin(step / 20)

    waves = bench(made("c", steps=240, own=own))
    compared = compare([Side(name=name, rounds=(waves,)) for name in ("a", "b")])
    (timed,) = [f for f in compared.figures if f.metric == "step_ns"]
    assert timed.replicate is not None
    assert timed.replicate.startswith("block of ")
    told = [value.text for row in comparison_tables(compared)[1].rows for value in row.values]
    assert "step, median of blocks" in told
    assert "peak memory" in told, "one figure on each side"
