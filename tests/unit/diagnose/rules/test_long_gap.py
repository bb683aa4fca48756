"""One long gap is a finding of its own, and no launch-bound step."""

from __future__ import annotations

import pytest
from tests.hand_events import Row, kernel, launch, mark, op, trace
from tests.trace_evidence import found, quiet, skipped, traced

from stepscope.diagnose.engine import check, diagnose
from stepscope.diagnose.rules import launch_bound, python_overhead
from stepscope.diagnose.rules.long_gap import RULE
from stepscope.records.finding import Finding
from stepscope.results.evidence import Evidence
from stepscope.traces.job import combine
from stepscope.traces.load import Wanted
from stepscope.traces.rank_pass import analyse

MS = 1_000_000


def steps(*gaps_ms: float, marked: bool = True, host: str | None = None) -> list[Row]:
    """A step of 100 ms of kernels a gap, with that gap in its middle; the host launches the second half behind it."""
    rows: list[Row] = []
    at = 0
    for i, gap_ms in enumerate(gaps_ms):
        begin, middle = at, at + 50 * MS
        resume = middle + round(gap_ms * MS)
        at = resume + 50 * MS
        rows += [
            launch(begin, begin + 10, 2 * i), kernel("gemm", begin + 20, middle, 2 * i), op("aten::mm", begin, begin + 10),
            launch(resume - 20, resume - 10, 2 * i + 1), kernel("gemm", resume, at, 2 * i + 1),
            op("aten::mm", resume - 20, resume - 10),
        ]  # fmt: skip
        if marked:
            rows.append(mark(f"ProfilerStep#{i + 7}", begin, at))
        if host and gap_ms > 500:
            rows.append(mark(host, middle + MS, resume - MS))
    return rows


def evidence(*ranks: list[Row]) -> Evidence:
    return traced(combine([analyse(trace(*rows, rank=i), Wanted()) for i, rows in enumerate(ranks)]))


@pytest.mark.parametrize("marked", [True, False])
def test_one_gap_of_10_s_in_13_is_named_and_left_out_of_launch_bound(marked: bool) -> None:
    gaps = [1.0] * 30
    gaps[12] = 10_000
    job = evidence(steps(*gaps, marked=marked, host="save_checkpoint"))
    finding = found(RULE, job)
    assert finding.severity == "problem"
    assert finding.stake_fraction == pytest.approx(10 / 13.03, abs=0.01)
    assert "idles once for 10.0 s" in finding.title
    assert ("in step 19" in finding.title) is marked
    assert "save_checkpoint" in finding.evidence[0]
    assert "1.26 s after the first work" in finding.evidence[0]
    other = diagnose(job, rules=(launch_bound.RULE, python_overhead.RULE)).findings
    assert other == ()
    assert job.traces[0].summary.verdicts[0].verdict.kind == "stall"


def test_a_gap_in_every_step_is_no_single_gap() -> None:
    job = evidence(steps(*[100.0] * 6))
    assert "no single gap" in quiet(RULE, job)
    (claimed,) = diagnose(job, rules=(launch_bound.RULE, python_overhead.RULE)).findings
    assert claimed.rule == "python-overhead"  # one rule has the time, not both


def test_two_checkpoints_are_two_gaps() -> None:
    gaps = [1.0] * 10
    gaps[2] = gaps[7] = 900
    finding = found(RULE, evidence(steps(*gaps)))
    assert "idles 2 times for 1.80 s" in finding.title
    assert [text.split(";")[0] for text in finding.evidence] == [
        "rank 0: 900 ms idle 252 ms after the first work, in step 9",
        "rank 0: 900 ms idle 1.66 s after the first work, in step 14",
    ]


def test_the_rank_that_stalls_is_named() -> None:
    gaps = [1.0] * 10
    stalled = [*gaps[:4], 2000.0, *gaps[5:]]
    assert found(RULE, evidence(steps(*gaps), steps(*stalled))).title.startswith("rank 1 idles once for 2.00 s")


def test_with_one_step_nothing_tells_a_gap_from_the_usual() -> None:
    assert quiet(RULE, evidence(steps(10_000)))


@pytest.mark.parametrize(("gap_ms", "fires"), [(900.0, True), (96.0, False)])
def test_borderline_a_tenth_of_the_window(gap_ms: float, fires: bool) -> None:
    gaps = [1.0] * 9
    said = check(RULE, evidence(steps(*gaps[:5], gap_ms, *gaps[5:])))
    assert (isinstance(said, tuple) and isinstance(said[0], Finding)) is fires


def test_without_any_work_nothing_can_be_said() -> None:
    assert "no device work, operators" in skipped(RULE, evidence([]))
