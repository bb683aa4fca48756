from __future__ import annotations

import pytest
from tests.bench_evidence import bench, made
from tests.evidence import run

from stepscope.diagnose.commands import ANY_MATRIX, remeasured, swept_again
from stepscope.diagnose.engine import check, concrete
from stepscope.diagnose.rules.two_writers import RULE as TWO_WRITERS
from stepscope.records.cell import RunRecord
from stepscope.records.finding import Advice, Finding, Quiet, Skipped


def record(*argv: str) -> RunRecord:
    return RunRecord(kind="bench", name="quick", matrix={}, cells=("c",), argv=argv)


RUN = record("/usr/bin/stepscope", "bench", "my matrix.yaml", "--profile", "-o", "RUN")


def test_findings_skipped_and_quiet_rules_pass_through() -> None:
    evidence = bench(made("c"), records=(RUN,))
    finding = Finding(
        rule="r", severity="info", title="t", evidence=(), stake_fraction=None, confidence="c",
        advice=(Advice(text="a"), Advice(text="b", command=ANY_MATRIX)),
    )  # fmt: skip
    (found,) = concrete((finding,), evidence)
    assert [a.command for a in found.advice] == [None, "stepscope bench 'my matrix.yaml' --profile"]
    quiet = Quiet(rule="r", looked_at="x")
    assert concrete(quiet, evidence) is quiet
    assert isinstance(concrete(Skipped(rule="r", reason="x"), evidence), Skipped)


def test_the_engine_gives_a_skipped_rule_the_runs_own_command() -> None:
    outcome = check(TWO_WRITERS, bench(made("c"), records=(RUN,)))
    assert isinstance(outcome, Skipped)
    assert outcome.command == "stepscope bench 'my matrix.yaml' --profile --set base.epochs=2"


def test_what_is_measured_again_has_its_command() -> None:
    """A cell in its run folder, a sweep without its folder; nothing for a run of another tool, or for several sweeps."""
    swept = RunRecord(
        kind="comm", name="comm", matrix={}, cells=(), argv=("/bin/stepscope", "comm", "--ops", "all_reduce", "-o", "C")
    )
    evidence = bench(made("c"), records=(RUN, swept))
    (measured,) = evidence.runs
    folder = evidence.cells[0].run.source
    assert remeasured(evidence, measured) == f"stepscope bench 'my matrix.yaml' --profile -o {folder} --rerun c"
    assert remeasured(bench(made("c")), measured) == f"{ANY_MATRIX}"
    assert remeasured(evidence, run("imported")) is None
    assert swept_again(evidence, "--budget", "20s") == "stepscope comm --ops all_reduce --budget 20s"
    assert swept_again(bench(made("c"), records=(swept, swept))) is None


@pytest.mark.parametrize("own", [("--budget", "1s"), ("--budget=1s",)])
def test_an_option_that_a_sweep_had_is_replaced(own: tuple[str, ...]) -> None:
    argv = ("stepscope", "comm", "--ops", "all_reduce", *own, "--ranks", "2")
    swept = RunRecord(kind="comm", name="comm", matrix={}, cells=(), argv=argv)
    again_ = swept_again(bench(made("c"), records=(swept,)), "--budget", "20s")
    assert again_ == "stepscope comm --ops all_reduce --ranks 2 --budget 20s"
