"""Tables of training runs beside the summary: against FP32, machine against machine, phases over steps and ranks."""

from __future__ import annotations

from dataclasses import replace
from statistics import stdev

import pytest
from tests.bench_evidence import bench, made
from tests.evidence import evidence, rate, run, step
from tests.overlapped_cells import evidence as overlapped
from tests.overlapped_cells import two

from stepscope.records.cell import RunRecord
from stepscope.records.finding import Diagnosis
from stepscope.records.training import TrainingRun
from stepscope.report.contents import all_tables, experiment_tables, run_tables
from stepscope.report.files import performance_report, tables
from stepscope.report.table import Table
from stepscope.report.views import bars, epochs, scaling
from stepscope.report.views.step_budget import spreads

MS = 1e6


def trained(run_id: str, ms: float, **known: object) -> TrainingRun:
    fields = {"model": "mlp", "dataset": "mnist", "accumulation": 1, "global_batch": 64, "precision": "fp32"}
    return run(run_id, step_ns=step(ms, spread=0.001), **{**fields, **known})


def by_row(table: Table) -> dict[tuple[str, str], dict[str, object]]:
    keys = [column.key for column in table.columns]
    rows = [dict(zip(keys, (value.raw for value in row.values), strict=True)) for row in table.rows]
    return {(str(row["about"]), str(row["runs"])): row for row in rows}


def test_every_cell_is_set_against_fp32_of_the_same_strategy_and_ranks() -> None:
    runs = [
        trained(f"{name}{n}{kind}", ms, strategy=name, ranks=n, precision=kind)
        for name, n, kind, ms in (
            ("single", 1, "fp32", 40), ("single", 1, "bf16", 20), ("ddp", 2, "fp32", 24), ("ddp", 2, "bf16", 16),
            ("naive", 2, "fp32", 30), ("naive", 2, "bf16", 24),
        )
    ]  # fmt: skip
    rows = by_row(bars.compared_table("precision", runs))
    ratios = {name: row["ratio_2"] for (_, name), row in rows.items()}
    assert ratios == {
        "single, 1 rank": pytest.approx(2.0), "ddp, 2 ranks": pytest.approx(1.5), "naive, 2 ranks": pytest.approx(1.25),
    }  # fmt: skip
    assert {row["value_1"] for row in rows.values()} == {40 * MS, 24 * MS, 30 * MS}


def test_machines_are_a_table_of_the_same_runs_and_one_that_failed_says_why() -> None:
    runs = [
        trained(f"{gpu}{n}", ms, ranks=n, strategy="ddp", hardware=gpu)
        for gpu, n, ms in (("PCIe", 2, 20.0), ("SXM", 2, 16.0), ("PCIe", 4, 18.0))
    ]
    lost = run("SXM4", ranks=4, strategy="ddp", hardware="SXM", status="oom", model="mlp", dataset="mnist",
               accumulation=1, global_batch=64, precision="fp32")  # fmt: skip
    tables = {table.key: table for table in run_tables(evidence(*runs, lost))}
    two, four = by_row(tables["hardware"]).values()
    assert two["ratio_2"] == pytest.approx(1.25)
    assert (four["value_2"], four["ratio_2"]) == ("out of GPU memory", None)
    assert "precision" not in tables, "one precision is not compared"


def test_phases_have_mean_longest_and_both_deviations() -> None:
    def own(rank: int, step: int, phases: dict[str, float]) -> None:
        phases["forward"] = 10.0 + 2.0 * rank + (1.0 if step % 2 else -1.0)

    cell = made("c", strategy="ddp", world_size=2, jitter=0.0, steps=40, own=own)
    rows = {row.phase: row for row in spreads(bench(cell).cells)}
    forward = rows["forward"]
    assert forward.mean == pytest.approx(11 * MS)
    assert forward.longest == pytest.approx(13 * MS)
    assert forward.over_ranks == pytest.approx(stdev((10, 12)) * MS)
    assert forward.over_steps == pytest.approx(MS, rel=0.03), "one up, one down"
    parts = sum(row.mean for phase, row in rows.items() if phase != "step")
    assert parts == pytest.approx(rows["step"].mean)


def test_titles_name_the_precision_that_all_runs_of_a_chart_share() -> None:
    fp32 = [trained(f"a{n}", 40 / n, ranks=n, strategy="ddp") for n in (1, 2, 4)]
    bf16 = [trained(f"b{n}", 20 / n, ranks=n, strategy="ddp", precision="bf16") for n in (1, 2, 4)]
    found = evidence(*fp32)
    (chart,) = scaling.scaling_charts(found.runs, found.scaling)
    assert chart.title.startswith("mlp on mnist, fp32")
    rated = [replace(each, samples_per_s=rate(100)) for each in (*fp32, *bf16)]
    (mixed,) = epochs.throughput_charts(rated)
    assert mixed.title == "mlp on mnist", "names of bars say which is which"


def test_page_files_and_text_report_have_the_same_tables_of_runs() -> None:
    found = overlapped(*two(40, 10), naive=[0, 0], ddp=[0.5, 0.5])
    record = RunRecord(kind="bench", name="overlap-efficiency", matrix={}, cells=("naive-cell", "ddp-cell"), argv=())
    found = replace(found, records=(record,))
    made = {table.key: table for table in (*experiment_tables(found), *run_tables(found))}
    assert {"experiment", "overlap_gain", "phase_times"} <= made.keys()
    nothing = Diagnosis(findings=(), skipped=(), quiet=())
    assert made.keys() <= tables(found, nothing).keys()
    page = [shown.table.key for shown in all_tables(found)]
    assert all(page.count(key) == 1 for key in made)
    text = performance_report(found, nothing)
    assert all(table.title.upper() in text.upper() for table in made.values())
