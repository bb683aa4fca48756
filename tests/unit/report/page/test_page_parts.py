"""What the page's parts say: charts, tables, key figures, timeline data."""

from __future__ import annotations

import base64
import json

from tests import pages
from tests.comm_rows import sweep
from tests.evidence import epochs, run

from stepscope.records.finding import Diagnosis
from stepscope.report.page import charts, facts, tables, timeline
from stepscope.report.page.overview import headline, key_figures, shown_findings
from stepscope.report.page.plot import SLOTS
from stepscope.results.evidence import Evidence, derived
from stepscope.traces.timeline_spans import unpack


def test_scaling_has_speedup_and_efficiency_with_the_baseline_in_every_line() -> None:
    speedup, efficiency = charts.scaling_charts(pages.evidence())
    assert [mark.x for mark in speedup.lines[0].marks] == [1, 2, 4, 8]
    assert speedup.lines[0].marks[0].y == 1.0
    assert speedup.references[0].points == ((1, 1.0), (8, 8.0))
    assert efficiency.lines[0].marks[-1].y == speedup.lines[0].marks[-1].y / 8
    assert [r.name for r in efficiency.references] == ["0.8", "0.9", "ideal"]
    assert "8 ranks" in speedup.lines[0].marks[-1].text


def test_no_scaling_chart_of_one_number_of_ranks() -> None:
    assert charts.scaling_charts(Evidence(sources=())) == ()


def test_more_runs_than_colours_make_more_charts() -> None:
    many = tuple(run(f"r{n}", ranks=1, epochs=epochs(seconds=[2.0, 1.0], loss=[2.0, 1.0])) for n in range(SLOTS + 2))
    found = charts.line_charts(Evidence(sources=(), runs=many))
    losses = [chart for chart in found if chart.key.startswith("loss")]
    assert [len(chart.lines) for chart in losses] == [SLOTS, 2]
    assert losses[0].title.endswith("(1 of 2)")
    assert {line.slot for line in losses[0].lines} == set(range(SLOTS))


def test_figures_that_are_no_numbers_are_left_out_of_curves() -> None:
    odd = run("odd", ranks=1, epochs=epochs(seconds=[1.0, 1.0, 1.0], loss=[1.0, float("nan"), 0.5]))
    losses, _ = charts.line_charts(Evidence(sources=(), runs=(odd,)))
    assert [mark.y for mark in losses.lines[0].marks] == [1.0, 0.5]


def test_collectives_are_drawn_over_size_and_wrong_ones_are_not() -> None:
    rows = (*sweep("all_reduce", rate=10e9), *sweep("all_gather", correct=False))
    (chart,) = charts.line_charts(Evidence(sources=(), comm=tuple(rows)))
    assert (chart.x.scale, chart.x.unit, chart.y.scale) == ("log2", "bytes", "log10")
    assert "all_reduce" in chart.title
    assert len(chart.lines[0].marks) == 9


def test_bars_name_failed_runs() -> None:
    found = {chart.key: chart for chart in charts.bar_charts(pages.evidence())}
    assert found["rate-0"].bars[-1].failure == "out of GPU memory: rank 3 on node-b: 2.1 GiB over"
    phases = found["phases-0"]
    assert [segment.slot for segment in phases.bars[0].segments] == [
        0,
        1,
        2,
        4,
        5,
    ]  # one rank: nothing exposed
    memory = found["memory-0"]
    assert memory.parts == ("parameters", "activations", "other")
    assert sum(s.value for s in memory.bars[0].segments) == 200 * 2**20


def test_tables_leave_out_what_nobody_knows_and_say_what_failed() -> None:
    shown = tables.all_tables(pages.evidence())[0]
    keys = [shown.table.columns[i].key for i in shown.columns]
    assert "accumulation" not in keys
    assert {"run", "step_ns", "speedup", "peak_memory_bytes"} <= set(keys)
    assert shown.throughout == "group toy, data digits, strategy ddp"
    assert "group" not in keys
    assert [bool(row.failure) for row in shown.table.rows] == [False, False, False, False, True]
    roles = [shown.table.columns[i].role for i in shown.columns]
    first = roles.index("measured")  # the failed row's reason stands across all measured columns
    assert roles[first : first + shown.measured] == ["measured"] * shown.measured
    assert keys[first + shown.measured :] == ["run_id"]


def test_long_tables_are_cut_and_say_so() -> None:
    many = tuple(run(f"r{n}", ranks=1, label=f"run {n}") for n in range(tables.MAX_ROWS + 7))
    shown = tables.all_tables(Evidence(sources=(), runs=many))[0]
    assert len(shown.table.rows) == tables.MAX_ROWS
    assert tables.rows_left_out(shown) == "7 more rows: in the CSV files"


def test_key_figures_are_the_extremes() -> None:
    found = {figure.label: figure for figure in key_figures(pages.evidence())}
    assert found["runs"].value == "5"
    assert "1 failed" in found["runs"].note
    assert found["best speed-up on 8 ranks"].value == "5.28x"
    assert found["peak memory of a rank"].value == "200 MiB"
    assert key_figures(Evidence(sources=())) == ()


def test_headline_counts_what_was_found() -> None:
    said = headline(pages.evidence(), pages.diagnosis())
    assert "5 runs, 1 traced job, 9 collective measurements: 1 problem and 1 warning" in said
    nothing = Diagnosis(findings=(), skipped=(), quiet=())
    assert headline(Evidence(sources=()), nothing).startswith("nothing measured: no problem found")


def test_stakes_are_never_wider_than_the_bar() -> None:
    from dataclasses import replace

    first = pages.diagnosis().findings[0]
    shown = shown_findings(pages.diagnosis(findings=(first, replace(first, stake_fraction=1.7))))
    assert [one.stake_width for one in shown] == ["31.0%", "100.0%"]
    assert shown[0].stake == "up to 31 % of the step"


def test_timeline_data_are_the_spans_of_every_rank() -> None:
    evidence = pages.evidence()
    data = timeline.timeline(evidence)
    trace, strip = data["jobs"]
    assert (trace["kind"], len(trace["rows"])) == ("trace", 8)
    first = evidence.traces[0].summary.ranks[0].spans
    assert first is not None
    row = trace["rows"][0]
    compute = next(each for each in first.kinds if each.kind == "compute")
    assert unpack(row["spans"]["compute"], origin=0, unit=row["unit"]).measure == compute.total_ns
    assert row["totals"]["compute"] == compute.total_ns
    assert {trace["names"][name] for _, _, name in row["named"]} <= {f"ncclDevKernel_AllReduce_{n}" for n in range(3)}
    assert strip["kind"] == "phases"
    assert [sum(r["phases"]) for r in strip["rows"]] == [10_500_000 + n * 1_000_000 for n in range(4)]


def test_cells_that_were_traced_have_no_strip_as_well() -> None:
    from dataclasses import replace

    given = pages.evidence()
    traced = replace(given, traces=(replace(given.traces[0], cell_id="cell-a"),))
    assert [job["kind"] for job in timeline.timeline(traced)["jobs"]] == ["trace"]


def test_fifty_jobs_share_the_room_of_one_page() -> None:
    jobs = tuple(pages.traced(f"cell {n}", count=3000, seed=n) for n in range(50))
    data = timeline.timeline(Evidence(sources=(), traces=jobs))
    text = timeline.embedded(data)
    assert 1_000_000 < len(text) < 2_100_000
    note = data["jobs"][0]["notes"][0]
    assert "Gaps up to" in note
    assert "totals are exact" in note
    row = data["jobs"][0]["rows"][0]
    kept = sum(len(base64.b64decode(packed)) for packed in row["spans"].values())
    assert kept > 500
    first = jobs[0].summary.ranks[0].spans
    assert first is not None
    assert row["totals"] == {each.kind: each.total_ns for each in first.kinds}


def test_ranks_with_unrelated_clocks_are_drawn_from_their_own_start() -> None:
    from dataclasses import replace

    trace = pages.traced("two clocks", ranks=2)
    late = trace.summary.ranks[1]
    assert late.spans is not None
    moved = replace(late, spans=replace(late.spans, start_ns=late.spans.start_ns + 10**15))
    far = replace(trace, summary=replace(trace.summary, ranks=(trace.summary.ranks[0], moved)))
    (job,) = timeline.timeline(Evidence(sources=(), traces=(far,)))["jobs"]
    assert [row["start"] for row in job["rows"]] == [0, 0]
    assert any("cannot be compared" in note for note in job["notes"])


def test_embedded_data_cannot_leave_its_script() -> None:
    text = timeline.embedded({"names": list(pages.HOSTILE)})
    assert not {"<", ">", "&", "\u2028", "\u2029"} & set(text)
    assert json.loads(text) == {"names": list(pages.HOSTILE)}


def test_configurations_are_the_resolved_matrix_as_yaml() -> None:
    ((name, commands, matrix),) = facts.configurations(pages.evidence())
    assert (name, commands) == ("hand-made", "stepscope bench base.yaml")
    assert "world_size:\n  - 1\n  - 2\n  - 4" in matrix


def test_notes_are_said_once() -> None:
    given = pages.evidence(notes=("torn", "torn", "other"))
    assert facts.notes(given) == ("torn", "other")


def test_baselines_are_not_charted_as_a_strategy_of_their_own() -> None:
    base = run("base", ranks=1, strategy="single", samples_per_s=pages.rate(100.0))
    many = run("many", ranks=4, strategy="ddp", samples_per_s=pages.rate(300.0), baseline_id="base")
    speedup, _ = charts.scaling_charts(derived(Evidence(sources=(), runs=(base, many))))
    assert [line.name for line in speedup.lines] == ["ddp"]
    assert [mark.y for mark in speedup.lines[0].marks] == [1.0, 3.0]


def test_a_failed_run_is_told_without_its_path() -> None:
    path = "results/a-long-way-down/metrics.csv"
    lost = run("lost", source=path, status="interrupted", error=f"{path}: no finished epoch")
    assert tables.failure_text(lost) == "interrupted: no finished epoch"
