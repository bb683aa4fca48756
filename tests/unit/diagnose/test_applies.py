"""Advice that cannot apply to a job is dropped once, by the facts of that job."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from tests.hand_events import op
from tests.trace_evidence import by_hand, with_setup

from stepscope.diagnose import rules
from stepscope.diagnose.advised import ADVICE, STRICT, Condition
from stepscope.diagnose.engine import check
from stepscope.diagnose.job_facts import HOLDS, JobFacts, applies
from stepscope.diagnose.rule import AdviceFor, Rule, advise
from stepscope.records.finding import Advice, Finding
from stepscope.records.profile import JobSetup, LoaderSetup
from stepscope.results.evidence import TraceEvidence

BUSY = LoaderSetup(workers=4, pinned=True, persistent=True)
CPU = JobFacts(device="cpu", cores=2, loader=BUSY, ranks_a_host=1, hosts=1, compiled=True)


@pytest.mark.parametrize("condition", sorted({*get_args(Condition)} - STRICT))
def test_what_is_unknown_excludes_no_advice(condition: Condition) -> None:
    assert HOLDS[condition](JobFacts())


@pytest.mark.parametrize(
    ("condition", "job"),
    [
        ("gpu", CPU),
        ("eager", CPU),
        ("several hosts", CPU),
        ("room for workers", CPU),
        ("workers that end", CPU),
        ("workers that end", replace(CPU, loader=LoaderSetup(workers=0, persistent=False))),
        ("pageable batches", CPU),
        ("pageable batches", replace(CPU, device="cuda")),
        ("replicated", JobFacts(parallel=frozenset({"pp"}))),
        ("replicated", JobFacts(parallel=frozenset({"tp", "sp"}))),
        ("replicated", JobFacts(parallel=frozenset({"sharded"}))),
        ("no pipeline", JobFacts(parallel=frozenset({"pp"}))),
        ("no split sequence", JobFacts(parallel=frozenset({"tp", "sp"}))),
    ],
)
def test_a_fact_that_says_otherwise_excludes_it(condition: Condition, job: JobFacts) -> None:
    assert not applies(advise("-", only_for=("eager", condition)), replace(job, compiled=condition == "eager"))


def test_the_engine_asks_once_and_gives_plain_advice() -> None:
    def look(_: TraceEvidence) -> Finding:
        return Finding(
            severity="warning", title="-", evidence=("-",), confidence="-",
            advice=(
                advise("augment on the device", "c", only_for=("gpu",)),
                advise("compile", only_for=("eager",)),
            ),
        )  # fmt: skip

    rule = Rule(name="r", symptom="-", look_at_job=look, protocol=1)
    eager = with_setup(by_hand(op("aten::mm", 0, 1000)), JobSetup(device="cpu", compiled=False))
    compiled = with_setup(eager, JobSetup(device="cpu", compiled=True))
    for job, left in ((eager, (Advice(text="compile"),)), (compiled, ())):
        (finding,) = check(rule, job)
        assert finding.advice == left
        assert not any(isinstance(each, AdviceFor) for each in finding.advice)


GUARDED = {
    "pin_memory": "pageable batches",
    "torch.compile": "eager",
    "replay CUDA graphs": "gpu",
    "update in few kernels": "trains",
    "on the device": "gpu",
    "persistent_workers=True": "workers that end",
}
"""Words of trace rules' advice -> the condition without which nobody may give it."""

_KNOWN = {
    ("data_loading", "pin_memory"),  # of a cell, whose spec says whether it is on
    ("exposed_memcpy", "pin_memory"),  # fires on copies that the trace shows to be of pageable memory
    ("host_sync", "on the device"),  # fires on devices alone
    ("host_sync", "pin_memory"),  # of copies of pageable memory that held the host in the trace
    ("long_gap", "persistent_workers=True"),  # fires on a loader that restarts
}


def test_advice_with_such_words_carries_its_condition() -> None:
    free = set()
    for path in Path(rules.__path__[0]).glob("*.py"):
        tree = ast.parse(path.read_text())
        for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "advise"):
            given = {n.value for k in call.keywords for n in ast.walk(k.value) if isinstance(n, ast.Constant)}
            conditions = given | {condition for key in given & ADVICE.keys() for condition in ADVICE[key]}
            said = " ".join(n.value for n in ast.walk(call) if isinstance(n, ast.Constant) and isinstance(n.value, str))
            free |= {(path.stem, word) for word, needed in GUARDED.items() if word in said and needed not in conditions}
    assert free - _KNOWN == set()
