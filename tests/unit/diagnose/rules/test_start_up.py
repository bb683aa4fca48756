"""What comes once is named as that, and no other rule advises on it."""

from __future__ import annotations

from tests.hand_events import call, kernel, trace
from tests.trace_evidence import found, quiet, skipped, traced
from tests.unit.traces.test_startup import MS, steps

from stepscope.diagnose.engine import diagnose
from stepscope.diagnose.rules import launch_bound, long_gap, python_overhead
from stepscope.diagnose.rules.start_up import RULE
from stepscope.results.evidence import Evidence
from stepscope.stats.step_table import trace_table
from stepscope.traces.job import combine
from stepscope.traces.rank_pass import analyse
from stepscope.traces.sections import Wanted


def evidence(*ranks: list) -> Evidence:
    return traced(combine([analyse(trace(*rows, rank=i), Wanted()) for i, rows in enumerate(ranks)]))


def test_the_call_its_time_and_the_other_steps_are_named() -> None:
    job = evidence(steps((0, call("cuLibraryLoadData", 0, 150 * MS))))
    finding = found(RULE, job)
    assert "idles 150 ms (71% of the window) in cuLibraryLoadData" in finding.title
    assert "in step 0; the other steps take 10.1 ms" in finding.evidence[-1]
    assert finding.stake_fraction is None
    assert finding.priority == "doubt"
    assert diagnose(job, rules=(launch_bound.RULE, long_gap.RULE, python_overhead.RULE)).findings == ()


def test_start_up_of_less_than_half_the_window_does_not_come_first() -> None:
    job = evidence(steps((0, call("cuLibraryLoadData", 0, 50 * MS))))
    assert found(RULE, job).priority == "performance"


def test_the_rank_that_starts_slowest_is_named() -> None:
    cold = steps((0, call("cuLibraryLoadData", 0, 150 * MS)))
    assert "on rank 1" in found(RULE, evidence(steps(), cold)).title


def test_a_job_without_start_up_is_left_alone() -> None:
    assert "limit 10%" in quiet(RULE, evidence(steps()))
    assert "no device work" in skipped(RULE, evidence([]))


def test_one_kernel_alone_has_no_start_up() -> None:
    assert quiet(RULE, evidence([kernel("gemm", 0, MS)]))


def test_what_comes_once_is_in_no_typical_step() -> None:
    job = evidence(steps((0, call("cuLibraryLoadData", 0, 150 * MS)), count=2))
    ranks = job.traces[0].summary.ranks
    table = trace_table(ranks)
    assert [s.parts.window_ns > 150 * MS for s in ranks[0].steps] == [True, False]
    assert table.whole_ns.max() < 11 * MS
    assert sum(values.sum() for values in table.parts_ns.values()) == table.whole_ns.sum()
