"""Accumulation without no_sync: the same gradients reduced several times a step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.trace_evidence import found, generated, quiet, skipped, traced

from stepscope.diagnose.engine import diagnose
from stepscope.diagnose.rules.exposed_communication import RULE as EXPOSED
from stepscope.diagnose.rules.gradient_sync_each_micro_step import RULE
from stepscope.records.profile import JobSetup
from stepscope.records.trace_collectives import BucketRow
from stepscope.results.evidence import Evidence

MIB = 1 << 20
ELEMENTS = 9 * MIB // 4


def accumulated(
    folder: Path, passes: int, *, exposed_ns: int = 50_000, waited_ns: int = 0, frameworks: tuple[str, ...] = ("ddp",)
) -> Evidence:
    """Two ranks, steps of 1 ms; each pass reduces 1 and 8 MiB, and each reduction exposes this much, more on rank 1."""
    summary = generated(folder, world=2, steps=3, overlap=False, transfer_ns=300_000).traces[0].summary
    ranks = []
    for each in summary.ranks:
        rank = each.facts.rank
        rows = tuple(
            BucketRow(
                rank=rank, step=s.step, index=i, wrapper="ddp", op="all_reduce", dtype="Float",
                size_bytes=(MIB, 8 * MIB)[i % 2], members=None, members_source=None, members_unavailable=None, ready_ns=0,
                launch_ns=i, start_ns=i, end_ns=i + 1, waited_ns=0, exposed_ns=exposed_ns + waited_ns * rank,
            )
            for s in each.steps
            for i in range(2 * passes)
        )  # fmt: skip
        timed = tuple(replace(s, parts=replace(s.parts, window_ns=1_000_000)) for s in each.steps)
        facts = replace(each.facts, setup=JobSetup(parameters=ELEMENTS), frameworks=frameworks)
        ranks.append(replace(each, buckets=rows, steps=timed, facts=facts, annotations=()))
    return traced(replace(summary, ranks=tuple(ranks)))


def test_three_of_four_reductions_are_at_stake_without_the_waiting(tmp_path: Path) -> None:
    finding = found(RULE, accumulated(tmp_path, 4, waited_ns=20_000))
    assert finding.stake_fraction == pytest.approx(0.75 * 8 * 0.05, rel=0.01)
    assert finding.severity == "problem"
    assert "4 backward passes a step" in finding.evidence[0]
    assert any("no_sync" in a.text for a in finding.advice)


def test_one_pass_a_step_is_as_it_should_be(tmp_path: Path) -> None:
    assert "one backward pass" in quiet(RULE, accumulated(tmp_path, 1))


@pytest.mark.parametrize(("exposed_ns", "fires"), [(25_000, True), (24_900, False)])
def test_borderline_a_twentieth_of_the_step(exposed_ns: int, fires: bool, tmp_path: Path) -> None:
    evidence = accumulated(tmp_path, 2, exposed_ns=exposed_ns)
    if fires:
        assert found(RULE, evidence).severity == "warning"
    else:
        assert "limit 5.0%" in quiet(RULE, evidence)


def test_it_names_the_cause_of_exposed_communication(tmp_path: Path) -> None:
    said = diagnose(accumulated(tmp_path, 4, exposed_ns=100_000), rules=(EXPOSED, RULE))
    assert [f.rule for f in said.findings] == ["gradient-sync-each-micro-step"]


@pytest.mark.parametrize(
    ("frameworks", "said"),
    [(("ddp", "lightning"), "accumulate_grad_batches"), (("ddp", "transformers"), "gradient_accumulation_steps")],
)
def test_the_framework_has_a_way_of_its_own(frameworks: tuple[str, ...], said: str, tmp_path: Path) -> None:
    texts = [a.text for a in found(RULE, accumulated(tmp_path, 4, frameworks=frameworks)).advice]
    assert any(said in text for text in texts)
    assert not any("no_sync" in text for text in texts)


def test_without_hooks_it_is_skipped(tmp_path: Path) -> None:
    assert "no step shows reductions" in skipped(RULE, generated(tmp_path, world=2, shape="pipeline"))
