"""The pipeline's tables, its picture, its curve."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.pipelines import MS, pipeline_cell

from stepscope.predict.pipeline import StageTime, simulate
from stepscope.records.mesh import PipelineLayout
from stepscope.report.views import pipeline
from stepscope.results.pipeline import conclusions, measured_pipeline, pipelines

EVEN = [StageTime(forward_ns=10 * MS, backward_ns=20 * MS)] * 2


def layout(micro_batches: int = 4, ranks: int = 2, schedule: str = "1f1b") -> PipelineLayout:
    return PipelineLayout(schedule=schedule, ranks=ranks, micro_batches=micro_batches)


def test_the_tables_have_bubble_formula_simulation_and_every_stage() -> None:
    first, stages = pipeline.pipeline_table([pipeline_cell(layout(), EVEN, (4, 4))])
    (row,) = first.rows
    told = {column.key: value for column, value in zip(first.columns, row.values, strict=True)}
    assert told["bubble"].text == "20% [20, 20]"
    assert (told["formula"].raw, told["simulated"].raw) == pytest.approx((1 / 5, 1 / 5))
    assert told["step"].raw == 30 * MS * 5
    assert told["balanced"].text == "as it is"
    assert [row.values[1].raw for row in stages.rows] == [0, 1]
    assert {row.values[4].text for row in stages.rows} == {"40.0 ms  27%"}
    assert pipeline.pipeline_table([]) == ()


def test_an_uneven_split_is_told_with_the_even_one_and_what_it_brings() -> None:
    slow = [StageTime(forward_ns=n * MS, backward_ns=2 * n * MS) for n in (6, 2)]
    first, _ = pipeline.pipeline_table([pipeline_cell(layout(8), slow, (6, 2))])
    assert first.rows[0].values[-1].text == "[4, 4]: step -25%"


@pytest.mark.parametrize("schedule", ["gpipe", "zero_bubble"])
def test_the_picture_has_every_computation_in_its_place_and_hatches_what_is_left(schedule: str) -> None:
    where = layout(schedule=schedule)
    (chart,) = pipeline.pipeline_charts([pipeline_cell(where, EVEN, (4, 4))])
    line = simulate(where, EVEN)
    hatched, boxes, texts = chart.spec["layer"]
    bars = boxes["data"]["values"]
    assert len(bars) == len(line.spans())
    assert sum(bar["to"] - bar["from"] for bar in bars) * MS == pytest.approx(sum(line.busy_ns), rel=1e-4)
    for stroke in hatched["data"]["values"]:
        overlapping = [b for b in bars if b["from"] < stroke["to"] - 0.01 and stroke["from"] + 0.01 < b["to"]]
        assert not any(b["top"] <= stroke["bottom"] <= stroke["top"] <= b["bottom"] for b in overlapping), (
            "drawn over work"
        )
    assert {text["text"][0] for text in texts["data"]["values"]} <= set("FBIW")
    assert "hatched: nothing" in chart.caption


def test_of_many_cells_each_schedule_is_drawn_once_before_another_number_of_micro_batches() -> None:
    cells = [pipeline_cell(layout(m, schedule=s), EVEN, (4, 4)) for s in ("gpipe", "1f1b") for m in (2, 4, 16)]
    drawn = [chart.caption.partition("nothing. ")[2].split("; bubble")[0] for chart in pipeline.pipeline_charts(cells)]
    assert drawn == [
        f"{schedule}, 2 ranks, micro-batches: {m}"
        for schedule, m in (("gpipe", 4), ("1f1b", 4), ("gpipe", 2), ("gpipe", 16))
    ]


def test_ranks_of_an_emulated_network_share_the_clock_of_this_machine() -> None:
    cell = pipeline_cell(layout(), EVEN, (4, 4), clocks=(5 * MS, 5 * MS))
    late = [
        replace(s, pipeline=replace(s.pipeline, synced_ns=s.pipeline.synced_ns + s.rank * MS))
        for s in cell.result.summaries
        if s.pipeline is not None
    ]
    emulated = replace(cell.result, spec=replace(cell.result.spec, network="1gbit"), summaries=tuple(late))
    found, plain = measured_pipeline(emulated), measured_pipeline(cell.result)
    assert found is not None
    assert plain is not None
    assert found.steps == plain.steps


def test_the_curve_has_a_point_for_each_number_of_micro_batches_and_the_formula_between() -> None:
    cells = [pipeline_cell(layout(m), EVEN, (4, 4)) for m in (8, 2, 4)]
    (chart,) = pipeline.pipeline_bubble_charts(cells)
    lines, *_, points = chart.spec["layer"]
    assert [(p["at"], round(p["value"])) for p in points["data"]["values"]] == [(2, 33), (4, 20), (8, 11)]
    assert len(lines["data"]["values"]) == 7
    assert list(pipeline.pipeline_bubble_charts(cells[:1])) == []
    (said,) = conclusions(pipelines(cells))
    assert said == (
        "1f1b on 2 ranks: the bubble falls from 33% [33, 33] with 2 micro-batches to 11% [11, 11] with 8 (by the formula "
        "33% and 11%); 9 micro-batches make it 10% by the formula"
    )


def test_ranks_of_several_hosts_are_laid_on_each_other_where_they_left_the_barrier() -> None:
    one = measured_pipeline(pipeline_cell(layout(), EVEN, (4, 4)).result)
    several = measured_pipeline(pipeline_cell(layout(), EVEN, (4, 4), clocks=(5 * MS, 9_000 * MS)).result)
    assert one is not None
    assert several is not None
    assert several.steps == one.steps
