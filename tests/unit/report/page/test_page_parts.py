"""What the page's parts say: charts, tables, key figures, timeline data."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path

from tests import pages
from tests.evidence import run

from stepscope.records.finding import Diagnosis
from stepscope.report import contents
from stepscope.report.page import build, merged_files, page_text, timeline
from stepscope.report.page.overview import key_figures, shown_findings
from stepscope.report.render.files import as_html
from stepscope.results.evidence import Evidence
from stepscope.stats import spans
from stepscope.traces.waits import unpack


def test_tables_leave_out_what_nobody_knows_and_say_what_failed() -> None:
    shown = contents.all_tables(pages.evidence())[0]
    keys = [shown.table.columns[i].key for i in shown.columns]
    assert "accumulation" not in keys
    assert {"label", "step_ns", "speedup", "peak_memory_bytes"} <= set(keys)
    assert shown.throughout == "toy, data digits, strategy ddp"
    assert "group" not in keys
    assert [bool(row.failure) for row in shown.table.rows] == [False, False, False, False, True]
    measured = sum(shown.table.columns[i].role == "measured" for i in shown.columns)
    html = as_html(shown.table, shown.columns, "table-runs")
    assert keys[-1] == "run_id"  # stands behind them and keeps its value
    assert f'colspan="{measured}">out of GPU memory' in html
    assert html.count("<td") + html.count('<th scope="row"') == 5 * len(keys) - (measured - 1)


def test_long_tables_are_cut_and_say_so() -> None:
    many = tuple(run(f"r{n}", ranks=1, label=f"run {n}") for n in range(contents.MAX_ROWS + 7))
    shown = contents.all_tables(Evidence(sources=(), runs=many))[0]
    assert len(shown.table.rows) == contents.MAX_ROWS
    assert contents.rows_left_out(shown) == "7 more rows: in the CSV files"


def test_key_figures_are_the_extremes() -> None:
    found = {figure.label: figure for figure in key_figures(pages.evidence(), pages.diagnosis())}
    assert found["runs without a result"].value == "1 of 5"
    assert "out of GPU memory" in found["runs without a result"].note
    assert found["best speed-up on 8 ranks"].value == "5.28x"
    assert found["peak memory of a rank"].value == "200 MiB"
    assert key_figures(Evidence(sources=()), Diagnosis(findings=(), skipped=(), quiet=())) == ()


def test_stakes_are_never_wider_than_the_bar() -> None:
    first = pages.diagnosis().findings[0]
    shown = shown_findings(pages.diagnosis(findings=(first, replace(first, stake_fraction=1.7))))
    assert [one["stake_width"] for one in shown] == ["31.0%", "100.0%"]
    assert shown[0]["stake"] == "a fix recovers up to 31% of the step"


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
    given = pages.evidence()
    traced = replace(given, traces=(replace(given.traces[0], cell_id="cell-a"),))
    assert [job["kind"] for job in timeline.timeline(traced)["jobs"]] == ["trace"]


def test_fifty_jobs_share_the_room_of_one_page() -> None:
    five = [pages.traced("a cell", count=3000, seed=n) for n in range(5)]
    jobs = tuple(replace(five[n % 5], name=f"cell {n}") for n in range(50))
    data = timeline.timeline(Evidence(sources=(), traces=jobs))
    text = timeline.embedded(data)
    assert 900_000 < len(text) < 1_500_000
    whole = page_text(title="50", evidence=pages.evidence(traces=jobs), diagnosis=pages.diagnosis())
    assert len(whole.encode()) < 2_000_000
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
    ((name, commands, matrix),) = build.configurations(pages.evidence())
    assert (name, commands) == ("hand-made", "stepscope bench base.yaml")
    assert "world_size:\n  - 1\n  - 2\n  - 4" in matrix


def test_the_job_of_the_first_finding_is_drawn_first_and_its_place_is_where_the_rank_is_late(tmp_path: Path) -> None:
    from stepscope.diagnose.engine import diagnose

    evidence = pages.late_jobs(tmp_path)
    findings = diagnose(evidence).findings
    data = timeline.timeline(evidence, findings)
    assert [job["name"] for job in data["jobs"]] == ["later", "late"]
    straggler = findings[0]
    assert (straggler.rule, straggler.job, straggler.ranks) == ("straggler", "later", (1,))
    found = timeline.place(data, straggler)
    assert found is not None
    assert (found.job, found.row, found.name) == (0, 1, "rank 1")
    assert found.at is not None
    row = data["jobs"][0]["rows"][0]  # another rank: it waits where the place says
    waits = unpack(row["spans"]["exposed_wait"], origin=row["start"], unit=row["unit"])
    middle = spans.clip(waits, low=found.at[0], high=found.at[1])
    assert middle.measure > 0


def test_waiting_and_transfer_are_two_kinds_that_sum_to_communication(tmp_path: Path) -> None:
    evidence = pages.late_jobs(tmp_path)
    data = timeline.timeline(evidence)
    job = next(job for job in data["jobs"] if job["name"] == "later")
    assert dict(job["kinds"])["exposed_comm"] == "exposed transfer"
    summary = evidence.traces[1].summary
    for row, found in zip(job["rows"], summary.ranks, strict=True):
        assert found.budget is not None
        totals = row["totals"]
        assert totals["exposed_wait"] + totals["exposed_comm"] == found.budget.parts.exposed_comm_ns
    assert job["rows"][1]["totals"]["exposed_wait"] == 0  # nobody is later than the straggler
    assert job["rows"][0]["totals"]["exposed_wait"] > 0


def test_a_share_of_time_and_a_smaller_stake_are_explained() -> None:
    first = replace(pages.diagnosis().findings[0], stake_fraction=0.31)
    findings = tuple(replace(first, share=share) for share in (None, 0.31, 0.4))
    shown = shown_findings(pages.diagnosis(findings=findings))
    assert [bool(each["explained"]) for each in shown] == [False, False, True]


def test_small_jobs_are_merged_beside_the_page(tmp_path: Path) -> None:
    evidence = pages.late_jobs(tmp_path / "in")
    found = merged_files(evidence, tmp_path / "out")
    assert {name: path.name for name, path in found.items()} == {
        "late": "merged-late.json.gz", "later": "merged-later.json.gz",
    }  # fmt: skip
    data = timeline.timeline(evidence, (), found)
    assert {job["merged"] for job in data["jobs"]} == {
        f"merged-{name}.json.gz beside this page: all ranks on one clock" for name in ("late", "later")
    }
    alone = timeline.timeline(evidence)["jobs"][0]["merged"]
    assert alone.endswith("--merge merged.json.gz")
    assert merged_files(pages.evidence(), tmp_path / "none") == {}  # whose files are not there
