"""MFU of runs: the model's FLOP over time, ranks and the peak of the precision."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.described import drawn, values
from tests.evidence import run

from stepscope.core.errors import Unavailable
from stepscope.records.training import Measured, TrainingRun
from stepscope.report.views import runs
from stepscope.results.epochs import mfu
from stepscope.results.runs import Planned, hfu_of

PEAK = 989.4e12  # H100 SXM, bf16, dense


def on_h100(name: str, flop: float, **more: object) -> TrainingRun:
    made = run(name, ranks=8, device="cuda", hardware="NVIDIA H100 80GB HBM3", precision="amp_bf16")
    return replace(made, step_ns=Measured(value=1e9), model_flop=flop, **more)  # type: ignore[arg-type]


def test_it_is_model_flop_over_time_ranks_and_peak() -> None:
    assert mfu(on_h100("a", 0.4 * 8 * PEAK)) == pytest.approx(0.4, rel=1e-3)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"model_flop": None}, "FLOP"),
        ({"hardware": "AMD EPYC 7B13", "device": "cpu"}, "peak unknown"),
        ({"precision": "int4"}, "peak unknown"),
        ({"world_size": None}, "ranks"),
    ],
)
def test_what_is_missing_is_the_reason(more: dict[str, object], reason: str) -> None:
    found = mfu(replace(on_h100("a", 1e15), **more))
    assert isinstance(found, Unavailable)
    assert reason in found.reason


def test_the_table_names_the_convention_or_why_it_is_unknown_and_the_chart_shows_runs_that_differ() -> None:
    known = [on_h100(name, 1.0, mfu=share) for name, share in (("a", 0.5), ("b", 0.25))]
    table = runs.build(known)
    column = [column.key for column in table.columns].index("mfu")
    assert [row.values[column].text for row in table.rows] == ["50%", "25%"]
    assert any("3 x forward" in note for note in table.footnotes)
    (chart,) = drawn("mfu", runs=known)
    assert [bar["to"] for bar in values(chart, "bar")] == [50, 25]
    assert drawn("mfu", runs=known[:1]) == ()
    (note,) = [n for n in runs.build([on_h100("a", 1.0, hardware="Some GPU 9000")]).footnotes if "MFU" in n]
    assert note.startswith("MFU unknown: peak unknown: 'Some GPU 9000' is not in the accelerator table")


def test_hfu_is_shown_where_checkpointing_computes_again() -> None:
    made = [on_h100("a", 1.0, mfu=0.5, hfu=0.5), on_h100("b", 1.0, mfu=0.45, hfu=0.6)]
    for known, shown in ((made, ["50%", "60%"]), (made[:1], ["–"])):
        table = runs.build(known)
        at = [column.key for column in table.columns].index("hfu")
        assert [row.values[at].text for row in table.rows] == shown
    plan = Planned(num_parameters=1, comm_bytes_per_step=0, train_flop_per_sample=300, recomputed_flop_per_sample=100)
    assert hfu_of(0.3, plan) == pytest.approx(0.4)
    assert hfu_of(0.3, replace(plan, recomputed_flop_per_sample=None)) is None
