"""Little of the peak is used: every point of the checklist answered, in order of the time it takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.borders import MOVES as OTHER
from tests.borders import low_mfu, used
from tests.evidence import evidence, run
from tests.trace_evidence import found, generated, skipped, with_idle, with_ranks

from stepscope.diagnose.engine import diagnose
from stepscope.diagnose.rules import launch_bound
from stepscope.diagnose.rules.low_mfu import RULE
from stepscope.records.finding import Quiet, Skipped
from stepscope.records.nouns import Measured

A100, V100 = "NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-32GB"
TENSOR, FP32 = "ampere_bf16_s16816gemm_bf16_128x64", "volta_sgemm_128x64_nn"


def test_reasons_stand_in_order_of_the_time_they_take() -> None:
    finding = found(RULE, with_idle(low_mfu(0.2), host_late=0.15, data=0.25))
    assert finding.title.startswith("MFU is 20% of the bf16 peak: most goes to matrix products at 40% of the bf16 peak")
    shares = [line.split(":")[0] for line in finding.evidence[1:]]
    assert shares == [f"{share}% of the window" for share in (30, 25, 15, 10)]
    assert "(100% of their time on tensor cores)" in finding.evidence[1]
    assert [line.split(": ")[1].split(",")[0] for line in finding.evidence[2:]] == [
        "input", "launch gaps", "kernels other than matrix products",
    ]  # fmt: skip
    assert finding.advice[1].text == "load batches in advance: the data-loading finding says how"
    assert "?" not in " ".join([finding.title, *finding.evidence, *(advice.text for advice in finding.advice)])


def test_it_gives_way_to_the_rule_that_names_its_largest_reason() -> None:
    traced = with_idle(low_mfu(0.003, (TENSOR, 5), (OTHER, 5)), host_late=0.5)
    said = diagnose(traced, rules=(launch_bound.RULE, RULE))
    assert [finding.rule for finding in said.findings] == ["launch-bound"]
    assert [each.looked_at for each in said.quiet] == [
        "MFU is 0.30% of the bf16 peak: most goes to launch gaps: launch-bound names the cause"
    ]


def test_without_flop_or_peak_nothing_is_said() -> None:
    assert "FLOP unknown: no shapes" in skipped(RULE, low_mfu(None))


def test_communication_that_waits_for_a_late_rank_is_not_advised_to_overlap(tmp_path: Path) -> None:
    """Overlap hides transfers; a rank that is late is waited for all the same."""
    made = generated(
        tmp_path, world=2, steps=4, late=dict.fromkeys(range(1), 4_000_000), late_kind="compute", transfer_ns=10_000
    )
    made = with_ranks(made, utilisation=used(0.1))
    texts = " ".join(advice.text for advice in found(RULE, made).advice)
    assert "the straggler finding" in texts
    assert "overlap" not in texts


def test_executed_flop_stand_in_where_the_models_are_unknown() -> None:
    executed = replace(used(0.2), mfu=None, hfu=0.2, model_flop=None, hardware_flop=1e9)
    assert found(RULE, with_ranks(low_mfu(0.2), utilisation=executed)).title.startswith("HFU is 20%")


def test_a_run_whose_own_log_states_a_low_mfu_is_named_with_its_figures() -> None:
    own = run("a", mfu=0.08, unit="tokens", rank_samples_per_s=Measured(value=1400.0), peak_memory_bytes=31 << 30)
    (found,) = RULE.check(evidence(own, run("b", mfu=0.4)))
    assert found.title.startswith("MFU is 8.0%")
    assert found.runs == ("a",)
    assert "1,400 tokens/s on each device" in found.evidence
    assert any("31.0 GiB" in line for line in found.evidence)


@pytest.mark.parametrize("mfu", [0.3, 0.38, 0.417, 0.52])
def test_a_usual_mfu_is_silent(mfu: float) -> None:
    assert isinstance(RULE.check(evidence(run("a", mfu=mfu))), Quiet)


def test_a_run_that_states_none_or_counts_its_flop_here_is_not_judged() -> None:
    outcome = RULE.check(evidence(run("a"), run("b", mfu=0.05, model_flop=1e12), run("c", mfu=0.05, status="error")))
    assert isinstance(outcome, Skipped)
