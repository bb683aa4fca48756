"""One long gap is a finding of its own, and no launch-bound step."""

from __future__ import annotations

import pytest
from tests.borders import gaps
from tests.hand_events import Row, op, trace
from tests.trace_evidence import found, skipped, traced

from stepscope.diagnose.engine import diagnose
from stepscope.diagnose.rules import launch_bound, python_overhead
from stepscope.diagnose.rules.long_gap import RULE
from stepscope.results.evidence import Evidence
from stepscope.traces.job import combine
from stepscope.traces.rank_pass import analyse
from stepscope.traces.sections import Wanted


def evidence(*ranks: list[Row]) -> Evidence:
    return traced(combine([analyse(trace(*rows, rank=i), Wanted()) for i, rows in enumerate(ranks)]))


@pytest.mark.parametrize("marked", [True, False])
def test_one_gap_of_10_s_in_13_is_named_and_left_out_of_launch_bound(marked: bool) -> None:
    waits = [1.0] * 30
    waits[12] = 10_000
    job = evidence(gaps(*waits, marked=marked, host="save_checkpoint"))
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


def test_two_checkpoints_are_two_gaps() -> None:
    waits = [1.0] * 10
    waits[2] = waits[7] = 900
    finding = found(RULE, evidence(gaps(*waits)))
    assert "idles 2 times for 1.80 s" in finding.title
    assert [text.split(";")[0] for text in finding.evidence] == [
        "rank 0: 900 ms idle 252 ms after the first work, in step 9",
        "rank 0: 900 ms idle 1.66 s after the first work, in step 14",
    ]


def test_the_rank_that_stalls_is_named() -> None:
    waits = [1.0] * 10
    stalled = [*waits[:4], 2000.0, *waits[5:]]
    assert found(RULE, evidence(gaps(*waits), gaps(*stalled))).title.startswith("rank 1 idles once for 2.00 s")


def test_without_any_work_nothing_can_be_said() -> None:
    assert "no device work, operators" in skipped(RULE, evidence([]))


@pytest.mark.parametrize(("serves", "saves"), [(True, False), (False, True)])
def test_a_server_is_not_told_to_write_checkpoints(serves: bool, saves: bool) -> None:
    waits = [1.0] * 10
    waits[5] = 3000.0
    steps = gaps(*waits)
    engine = [op("vllm::unified_attention", 20, 40)] if serves else [op("Optimizer.step#SGD.step", 20, 40)]
    texts = [advice.text for advice in found(RULE, evidence([*steps, *engine])).advice]
    assert any("async_save" in text for text in texts) is saves
    assert any("request" in text for text in texts) is serves
