"""Communication after backward against communication inside it: which cells are compared, what is hidden, which sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.bench_evidence import made
from tests.described import values
from tests.overlapped_cells import MS, evidence, traced, two

from stepscope.records.nouns import Measured
from stepscope.report.vega import Chart
from stepscope.report.views import step_parts as view
from stepscope.results.evidence import Evidence
from stepscope.results.sweeps import OverlapGain, gains, hidden_of, overlap_conclusions

TRACED = {"naive": [0, 0], "ddp": [0.8, 0.8]}


def only(found: Evidence) -> OverlapGain:
    (gain,) = gains(found.cells, found.traces)
    return gain


def test_the_hidden_share_is_that_of_all_ranks_and_steps_with_the_single_steps_as_its_range() -> None:
    gain = only(evidence(*two(40, 10), naive=[0, 0, 0], ddp=[0.5, 0.75, 1.0]))
    assert (gain.after.cell_id, gain.inside.cell_id) == ("naive-cell", "ddp-cell")
    assert gain.hidden_after.share.value == 0
    assert gain.hidden_inside.share == Measured(value=pytest.approx(0.75), low=0.5, high=1.0, n=3)
    assert gain.hidden_inside.comm_ns == 40 * MS


@pytest.mark.parametrize(
    ("naive_ms", "ddp_ms", "verdict"),
    [(40, 10, "better"), (10, 40, "worse"), (20, 20, "no significant difference")],
)
def test_a_shorter_step_is_claimed_only_where_the_intervals_show_it(
    naive_ms: float, ddp_ms: float, verdict: str
) -> None:
    step = only(evidence(*two(naive_ms, ddp_ms), **TRACED)).step
    assert step.verdict == verdict
    assert step.low < step.ratio < step.high
    # medians of the steps: work of 97 ms, and what is exposed
    assert step.ratio == pytest.approx((97 + ddp_ms) / (97 + naive_ms), rel=0.02)


def test_too_few_steps_give_a_ratio_without_a_verdict() -> None:
    step = only(evidence(*two(40, 10, steps=4), **TRACED)).step
    assert (step.low, step.verdict) == (None, "not tested")


@pytest.mark.parametrize(
    ("naive_ms", "ddp_ms", "network", "said"),
    [(40, 10, None, False), (10, 40, None, True), (20, 20, None, True), (10, 40, "2gbit:2", False)],
)
def test_that_ranks_share_cores_is_said_where_overlap_did_not_help_without_a_network(
    naive_ms: float, ddp_ms: float, network: str | None, *, said: bool
) -> None:
    found = evidence(*two(naive_ms, ddp_ms, network=network), naive=[0, 0], ddp=[0.8, 0.8])
    (sentence,) = overlap_conclusions(gains(found.cells, found.traces))
    assert ("--emulate-network" in sentence) == said
    assert "80%" in sentence


def test_cells_of_other_work_or_without_both_traces_are_not_compared() -> None:
    naive, ddp = two(40, 10)
    other = made("other-cell", strategy="ddp", world_size=2, micro_batch=ddp.result.spec.micro_batch * 2)
    alone = made("single-cell", strategy="single", world_size=1)
    found = evidence(naive, other, alone, naive=[0], other=[0.5], single=[0.5])
    assert gains(found.cells, found.traces) == ()
    assert view.gain_table(found.cells, found.traces).rows == ()
    for traces in ({}, {"ddp": [0.5]}):
        found = evidence(*two(40, 10), **traces)
        assert gains(found.cells, found.traces) == ()
    silent = traced("c", [0.5])
    ranks = tuple(
        replace(p, steps=tuple(replace(s, parts=replace(s.parts, comm_ns=0, overlap_ns=0)) for s in p.steps))
        for p in silent.summary.ranks
    )
    assert hidden_of(replace(silent, summary=replace(silent.summary, ranks=ranks))) is None


def test_cells_of_two_runs_of_one_matrix_keep_their_own_traces() -> None:
    first, second = (
        evidence(*two(40, 10), naive=[0, 0], ddp=[0.5, 0.5]),
        evidence(*two(40, 20), naive=[0, 0], ddp=[1.0, 1.0]),
    )
    cells = [
        replace(cell, run=replace(cell.run, source=name, run_id=f"{name}/{cell.cell_id}"))
        for name, part in (("a", first), ("b", second))
        for cell in part.cells
    ]
    traces = [replace(trace, source=name) for name, part in (("a", first), ("b", second)) for trace in part.traces]
    found = {gain.inside.run.run_id: gain for gain in gains(cells, traces)}
    assert {name: gain.after.run.run_id for name, gain in found.items()} == {
        "a/ddp-cell": "a/naive-cell", "b/ddp-cell": "b/naive-cell",
    }  # fmt: skip
    assert [gain.hidden_inside.share.value for gain in found.values()] == [0.5, 1.0]
    assert len(list(view.step_pictures(cells, traces))) == 4
    # Where a folder has the one kind alone, the other's serves.
    apart = [cell for cell in cells if cell.run.run_id in ("a/naive-cell", "b/ddp-cell")]
    (gain,) = gains(apart, traces)
    assert (gain.after.run.source, gain.inside.run.source, gain.hidden_inside.share.value) == ("a", "b", 1.0)


def test_the_table_has_the_run_after_backward_first_and_the_ratio_with_its_interval() -> None:
    found = evidence(*two(40, 10), naive=[0, 0], ddp=[0.5, 1.0])
    table = view.gain_table(found.cells, found.traces)
    rows = [dict(zip((c.key for c in table.columns), row.values, strict=True)) for row in table.rows]
    assert [row["reduces"].raw for row in rows] == ["after backward", "inside backward"]
    assert [row["hidden"].raw for row in rows] == [0, 0.75]
    assert rows[0]["step_ratio"].raw is None
    assert rows[1]["step_ratio"].tone == "good"


def test_the_two_pictures_have_one_axis_and_every_span_of_one_step_in_its_place() -> None:
    found = evidence(*two(40, 10), naive=[0, 0, 0], ddp=[0.75, 0.75, 0.75])
    after, inside = view.step_pictures(found.cells, found.traces)
    assert [each.spec["encoding"]["x"]["scale"]["domainMax"] for each in (after, inside)] == [140, 140]

    def on_rank_1(chart: Chart) -> list[tuple[str, float, float]]:
        return [(b["series"], b["from"], b["to"]) for b in values(chart, "bar") if b["row"].startswith("rank 1")]

    compute, exposed = "computation", "exposed communication"
    assert on_rank_1(after) == [(compute, 0, 100), (exposed, 100, 140)]
    assert on_rank_1(inside) == [(compute, 0, 100), ("hidden communication", 70, 100), (exposed, 100, 110)]
    found = evidence(*two(40, 10), ddp=[0.5, 0.5])
    assert list(view.step_pictures(found.cells, found.traces)) == []
