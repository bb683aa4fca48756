from __future__ import annotations

from tests.bench_evidence import bench, failed, made
from tests.comm_rows import row, sweep

from stepscope.diagnose.rules.failed_cells import RULE
from stepscope.records.cell import RunRecord
from stepscope.records.finding import Quiet
from stepscope.results.evidence import Evidence


def test_failures_are_counted_grouped_and_named() -> None:
    record = RunRecord(
        kind="bench", name="m", matrix={}, cells=("a", "b", "c"),
        argv=("stepscope", "bench", "m.yaml", "-o", "OLD", "--json"),
    )  # fmt: skip
    evidence = bench(
        made("a"),
        failed("b", "timeout", "rank 1 on node-b never called all_reduce 7", strategy="naive"),
        failed("c", "timeout", "rank 1 on node-b never called all_reduce 7", strategy="bucketed"),
        records=(record,),
    )
    (found,) = RULE.check(evidence)
    assert found.title == "2 of 3 cells failed: 2 timeout"
    assert found.severity == "problem"
    assert len(found.evidence) == 1
    assert "and 1 more: rank 1 on node-b never called all_reduce 7" in found.evidence[0]
    assert found.advice[0].command == "stepscope bench m.yaml -o RUN"


def test_what_cannot_run_here_is_worth_knowing_and_no_failure() -> None:
    (found,) = RULE.check(bench(made("a"), failed("b", "unsupported", "4 ranks need 4 GPUs", world_size=4)))
    assert found.severity == "info"
    assert "did not run: 1 unsupported" in found.title


def test_an_interrupted_cell_did_not_fail() -> None:
    stopped = failed("b", "interrupted", "stopped before it finished")
    (found,) = RULE.check(bench(made("a"), stopped))
    assert (found.severity, found.title) == ("info", "1 of 2 cells was interrupted")
    assert found.advice[0].command is not None
    first, second = RULE.check(bench(made("a"), stopped, failed("c", "error", "rank 0: ValueError", strategy="naive")))
    assert (first.severity, first.title) == ("problem", "1 of 3 cells failed: 1 error")
    assert (second.severity, second.title) == ("info", "1 of 3 cells was interrupted")


def test_an_interrupted_sweep_did_not_fail() -> None:
    rows = (*sweep(), row(cell_id="a", status="interrupted", op="broadcast"), row(cell_id="b", status="timeout"))
    first, second = RULE.check(Evidence(sources=(), comm=rows))
    assert (first.severity, first.title) == ("problem", "1 of 3 sweeps failed: 1 timeout")
    assert (second.severity, second.title) == ("info", "1 of 3 sweeps was interrupted")


def test_a_cell_that_ended_well_without_a_step_time_is_named() -> None:
    empty = made("b", known={"step_ns": None, "samples_per_s": None}, strategy="naive")
    (found,) = RULE.check(bench(made("a"), empty))
    assert found.title == "1 cell finished without a step time"


def test_unfinished_sweeps_are_counted_and_sizes_left_out_are_not() -> None:
    rows = (
        *sweep(),
        row(cell_id="a", status="timeout", op="broadcast", error="rank 1 did not enter broadcast of 1 MiB"),
        row(cell_id="b", status="skipped"),
        row(cell_id="c", status="unsupported"),
    )
    (found,) = RULE.check(Evidence(sources=(), comm=rows))
    assert found.title == "1 of 4 sweeps failed: 1 timeout"
    assert found.evidence == ("timeout: broadcast on 2 ranks: rank 1 did not enter broadcast of 1 MiB",)
    assert isinstance(RULE.check(Evidence(sources=(), comm=tuple(sweep()))), Quiet)
