from __future__ import annotations

from typing import Any

import pytest
from tests.bench_evidence import Made, bench, environment, made

from stepscope.diagnose.rules.checkpointing_without_need import RULE
from stepscope.records.finding import Finding, Quiet, Skipped
from stepscope.results.evidence import Evidence

GIB = 2**30
GPT = {"workload": "gpt", "model": {"num_layers": 4, "d_model": 128, "max_seq_len": 64, "vocab_size": 1024}}
MACHINE = environment(memory_bytes=16 * GIB)


def cell(mode: str, *, ms: float = 97.0, peak: int = GIB, activations: int | None = None, **spec: Any) -> Made:
    counted = {} if activations is None else {"summary": {"memory": {"activations": activations}}}
    return made(
        mode, activation_checkpointing=mode, phases={"forward": ms - 67.0}, known={"peak_memory_bytes": peak},
        **counted, **GPT, **spec,
    )  # fmt: skip


def said(evidence: Evidence) -> Finding:
    (found,) = RULE.check(evidence)
    assert isinstance(found, Finding)
    return found


def test_with_room_and_a_faster_cell_without_it_fires() -> None:
    found = said(bench(cell("full", ms=125), cell("none"), environment=MACHINE))
    assert found.title.startswith("full activation checkpointing is not needed: without it 8")
    assert found.stake_fraction == pytest.approx(1 - 97 / 125, abs=0.03)
    assert found.advice[0].command is not None
    assert found.advice[0].command.endswith("--set base.activation_checkpointing=none")


def test_alone_the_planned_flop_are_the_stake() -> None:
    found = said(bench(cell("full"), environment=MACHINE))
    assert found.stake_fraction is not None
    assert 0.10 < found.stake_fraction < 0.25
    assert "computed again" in found.evidence[1]


def test_where_it_costs_no_time_there_is_nothing_to_say() -> None:
    assert isinstance(RULE.check(bench(cell("full"), cell("none"), environment=MACHINE)), Quiet)
    assert isinstance(RULE.check(bench(cell("selective"), environment=MACHINE)), Quiet), "no FLOP are planned twice"


def test_without_recomputation_or_a_capacity_it_is_skipped() -> None:
    assert isinstance(RULE.check(bench(cell("none"), environment=MACHINE)), Skipped)
    assert isinstance(RULE.check(bench(cell("full"))), Skipped)
