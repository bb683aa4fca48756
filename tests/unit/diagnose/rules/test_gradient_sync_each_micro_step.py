"""Accumulation without no_sync: the same gradients reduced several times a step."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.borders import accumulated
from tests.trace_evidence import found, generated, quiet, skipped

from stepscope.diagnose.engine import diagnose
from stepscope.diagnose.rules.exposed_communication import RULE as EXPOSED
from stepscope.diagnose.rules.gradient_sync_each_micro_step import RULE


def test_three_of_four_reductions_are_at_stake_without_the_waiting(tmp_path: Path) -> None:
    finding = found(RULE, accumulated(tmp_path, 4, waited_ns=20_000))
    assert finding.stake_fraction == pytest.approx(0.75 * 8 * 0.05, rel=0.01)
    assert finding.severity == "problem"
    assert "4 backward passes a step" in finding.evidence[0]
    assert any("no_sync" in a.text for a in finding.advice)


def test_one_pass_a_step_is_as_it_should_be(tmp_path: Path) -> None:
    assert "one backward pass" in quiet(RULE, accumulated(tmp_path, 1))


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
