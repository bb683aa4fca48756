from __future__ import annotations

from typing import Any

import pytest
from tests.bench_evidence import bench, made
from tests.evidence import evidence, run, step

from stepscope.diagnose.engine import check
from stepscope.diagnose.rule import IN_FULL, folded
from stepscope.diagnose.rules.impossible_figures import RULE as IMPOSSIBLE
from stepscope.records.finding import Advice, Finding
from stepscope.records.training import TrainingRun
from stepscope.results.evidence import Evidence


def finding(number: int, stake: float | None = None) -> Finding:
    return Finding(
        rule="some-rule",
        severity="problem",
        title=f"case {number}",
        evidence=("e",),
        stake_fraction=stake,
        confidence="measured",
        advice=(Advice(text="do"),),
        subject=f"group {number}",
    )


def test_few_stay_as_they_are_largest_stake_first() -> None:
    found = folded(finding(n, stake=n / 10) for n in range(IN_FULL + 1))
    assert [f.title for f in found] == ["case 4", "case 3", "case 2", "case 1", "case 0"]


def test_many_are_folded_into_lines_that_name_them() -> None:
    found = folded(finding(n, stake=1 - n / 100) for n in range(IN_FULL + 30))
    assert [f.title for f in found[:IN_FULL]] == ["case 0", "case 1", "case 2", "case 3"]
    assert len(found) == IN_FULL + 1
    last = found[-1]
    assert last.title == "some-rule: 30 more cases of the same kind"
    assert last.evidence[0] == "group 4: case 4"
    assert last.evidence[-1] == "and 18 more"
    assert (last.severity, last.stake_fraction, last.advice, last.subject) == ("problem", None, (), None)


def _wrong(run_id: str, day: int, *, ranks: int = 8, of: str = "", **known: Any) -> TrainingRun:
    """A run of a table that states its day, with an impossible MFU. of: what its label begins with."""
    settings = {"mfu": 1.2 + day / 100, "date": f"2025-05-{day:02d}"}
    return run(run_id, ranks=ranks, label=f"{of}{ranks} ranks, 2025-05-{day:02d}", settings=settings, **known)


def _found(*runs: TrainingRun) -> tuple[Finding, ...]:
    found = check(IMPOSSIBLE, evidence(*runs))
    assert isinstance(found, tuple)
    return found


def test_the_same_on_many_nights_is_one_finding_with_its_runs() -> None:
    """A figure that is wrong every night is told once; another kind of run keeps its own."""
    found = _found(*(_wrong(f"n{day}", day) for day in range(1, 21)), _wrong("four", 1, ranks=4))
    assert [set(f.wrong_runs) for f in found] == [{f"n{day}" for day in range(1, 21)}, {"four"}]
    assert found[0].evidence[-1].startswith("the same on 19 other runs: toy: 8 ranks, 2025-05-")


@pytest.mark.parametrize("models", [("7B", "70B"), ("llama-7b", "llama-13b")])
def test_findings_on_different_models_stay_apart(models: tuple[str, str]) -> None:
    """Their names differ in a number only, as do days and numbered run folders."""
    found = _found(*(_wrong(f"{model}-{day}", day, of=f"{model}: ", model=model) for model in models for day in (1, 2)))
    assert [f.wrong_runs for f in found] == [(f"{model}-1", f"{model}-2") for model in models]


def test_folders_that_are_no_nights_stay_apart() -> None:
    runs = [run(size, ranks=8, label=f"{size}: ddp", settings={"mfu": 1.2}) for size in ("7B", "70B")]
    assert [f.wrong_runs for f in _found(*runs)] == [("7B",), ("70B",)]


def test_two_checks_on_one_kind_of_run_stay_apart() -> None:
    runs = [_wrong(f"n{day}", day, step_ns=step(10), exposed_comm_ns=step(20)) for day in (1, 2)]
    assert [(f.case, f.wrong_runs) for f in _found(*runs)] == [("mfu", ("n1", "n2")), ("exposed", ("n1", "n2"))]


def test_rows_of_one_day_are_no_repeats() -> None:
    """Something that no column names differs between them."""
    assert [f.wrong_runs for f in _found(_wrong("a", 1), _wrong("b", 1))] == [("a",), ("b",)]


def test_a_cell_of_bench_is_the_same_in_every_run_folder() -> None:
    nights = [
        bench(made(cell, known={"run_id": f"night-{n}/{cell}", "exposed_comm_ns": step(300)}))
        for n in (1, 2)
        for cell in ("c", "d")
    ]
    found = _cells(nights)
    assert sorted(f.runs for f in found) == [("night-1/c", "night-2/c"), ("night-1/d", "night-2/d")]


def _cells(parts: list[Evidence]) -> tuple[Finding, ...]:
    together = Evidence(
        sources=(), runs=tuple(r for e in parts for r in e.runs), cells=tuple(c for e in parts for c in e.cells)
    )
    found = check(IMPOSSIBLE, together)
    assert isinstance(found, tuple)
    return found
