from __future__ import annotations

import pytest
from tests.bench_evidence import bench, made
from tests.evidence import epochs, evidence, rate, run, step

from stepscope.diagnose.engine import check
from stepscope.diagnose.rules.negative_scaling import RULE
from stepscope.records.cell import RunRecord
from stepscope.records.finding import Quiet, Skipped
from stepscope.records.trace_summary import TraceSummary
from stepscope.results.evidence import TraceEvidence


def test_slower_on_more_ranks_fires_with_the_worst_and_the_others() -> None:
    (found,) = RULE.check(
        evidence(
            run("a", samples_per_s=rate(100)),
            run("b", ranks=2, samples_per_s=rate(80), step_ns=step(10), exposed_comm_ns=step(6)),
            run("c", ranks=4, samples_per_s=rate(46)),
        )
    )
    assert found.title == "4 ranks are slower than 1 rank: 0.46x"
    assert found.stake_fraction == pytest.approx(1 - 0.115)
    assert "also b on 2 ranks: 0.80x" in found.evidence
    assert found.confidence == "measured"


def test_exposed_communication_stands_beside_it() -> None:
    two = run("b", ranks=2, samples_per_s=rate(80), step_ns=step(10), exposed_comm_ns=step(6))
    (found,) = RULE.check(evidence(run("a", samples_per_s=rate(100)), two))
    assert "60% of the step is exposed communication" in found.evidence


def test_just_below_one_fires_and_says_how_sure_it_is() -> None:
    base = run("a", samples_per_s=rate(100))
    (found,) = RULE.check(evidence(base, run("b", ranks=2, samples_per_s=rate(99.5))))
    assert found.confidence.startswith("likely")
    assert isinstance(RULE.check(evidence(base, run("b", ranks=2, samples_per_s=rate(100)))), Quiet)


def test_duplicated_data_explains_it_and_holds_the_stake() -> None:
    curves = {"a": [0.6, 0.4], "b": [0.4, 0.2]}
    runs = [
        run(i, ranks=n, dataset="ag", epochs=epochs(seconds=s, loss=curves[i]))
        for i, n, s in (("a", 1, [100.0, 100.0]), ("b", 4, [125.0, 125.0]))
    ]
    (found,) = RULE.check(evidence(*runs))
    assert found.stake_fraction is None
    assert any(line.startswith("explained by duplicated-data") for line in found.evidence)


def test_without_a_baseline_it_is_skipped() -> None:
    assert isinstance(check(RULE, evidence(run("b", ranks=2, samples_per_s=rate(99)))), Skipped)


def test_a_cell_is_sent_to_its_own_traces_or_to_a_command_that_makes_them() -> None:
    cells = (
        made("s", strategy="single", world_size=1, comm_ms=0),
        made("d", comm_ms=60, known={"baseline_id": "s"}),
    )
    record = RunRecord(kind="bench", name="m", matrix={}, cells=("s", "d"), argv=("stepscope", "bench", "m.yaml"))
    (found,) = RULE.check(bench(*cells, records=(record,)))
    assert found.advice[1].command == "stepscope bench m.yaml --profile -o PROFILED && stepscope diagnose PROFILED"
    summary = TraceSummary(world_size=2, ranks=(), verdicts=(), notes=())
    traced = bench(*cells, records=(record,), traces=(TraceEvidence(name="d", summary=summary, cell_id="d"),))
    (found,) = RULE.check(traced)
    assert (found.advice[1].command or "").startswith("stepscope trace ")


def test_a_run_of_another_tool_gets_no_command_of_ours() -> None:
    (found,) = RULE.check(evidence(run("a", samples_per_s=rate(100)), run("b", ranks=2, samples_per_s=rate(80))))
    assert all(advice.command is None for advice in found.advice)


def test_epochs_that_take_as_long_may_not_share_the_data() -> None:
    runs = [run(str(n), ranks=n, scaling="strong", epochs=epochs(seconds=[80.0 + n] * 6)) for n in (1, 4)]
    (found,) = RULE.check(evidence(*runs))
    assert "DistributedSampler" in found.advice[0].text
    slow = [run(str(n), ranks=n, scaling="strong", epochs=epochs(seconds=[40.0 * n] * 6)) for n in (1, 4)]
    (found,) = RULE.check(evidence(*slow))
    assert "DistributedSampler" not in found.advice[0].text
