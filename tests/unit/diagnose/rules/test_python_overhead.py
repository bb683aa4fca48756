"""Python between the operators: idle time in which the host is in no operator."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.hand_events import kernel, launch, op
from tests.trace_evidence import by_hand, found, generated, quiet, skipped, with_idle, with_ranks

from stepscope.diagnose.rules.python_overhead import RULE
from stepscope.records.trace_rules import HostLateness
from stepscope.results.evidence import Evidence


def late_host(*, inside_operators: bool) -> Evidence:
    """Ten kernels of 20 us, a launch every 100 us; the host is in Python in between, or in one long operator."""
    rows = []
    for i in range(10):
        at = i * 100_000
        rows += [launch(at, at + 5_000, i + 1), kernel("relu_kernel", at + 6_000, at + 26_000, i + 1)]
        begin = at - 90_000 if inside_operators else at - 1_000
        rows.append(op("aten::relu", max(0, begin), at + 5_500))
    return by_hand(*rows)


def test_a_host_in_python_between_launches_fires() -> None:
    finding = found(RULE, late_host(inside_operators=False))
    assert finding.severity == "problem"
    assert finding.stake_fraction == pytest.approx(9 * 73 / 926, abs=0.02)
    assert "Python" in finding.title
    assert "py-spy record" in (finding.advice[0].command or "")


def test_a_host_that_is_late_inside_operators_is_quiet() -> None:
    assert "limit 10%" in quiet(RULE, late_host(inside_operators=True))


def test_a_cpu_job_between_operators_fires_and_data_loading_is_left_out(tmp_path: Path) -> None:
    evidence = generated(tmp_path, world=2, device="gloo", data_ns=300_000)
    assert found(RULE, with_idle(evidence, outside_operators=0.4, data=0.3)).stake_fraction == pytest.approx(
        0.4, abs=1e-3
    )
    assert quiet(RULE, with_idle(evidence, outside_operators=0.05, data=0.3))


@pytest.mark.parametrize(
    ("share", "severity"), [(0.0999, None), (0.1001, "info"), (0.1999, "info"), (0.2001, "problem")]
)
def test_on_cpus_a_tenth_is_an_observation_and_a_fifth_a_finding(
    share: float, severity: str | None, tmp_path: Path
) -> None:
    evidence = with_idle(generated(tmp_path, world=1, device="gloo"), outside_operators=share)
    if severity is None:
        assert quiet(RULE, evidence)
        return
    finding = found(RULE, evidence)
    assert finding.severity == severity
    assert (finding.stake_fraction is None) == (severity == "info")


@pytest.mark.parametrize(("python_ns", "fires"), [(100_000, True), (99_000, False)])
def test_borderline_a_tenth_of_the_window(python_ns: int, fires: bool) -> None:
    evidence = late_host(inside_operators=True)
    window = evidence.traces[0].summary.ranks[0].budget
    assert window is not None
    python = round(python_ns / 1e6 * window.parts.window_ns)
    known = HostLateness(rank=0, late_ns=2 * python, operator_ns=python, python_ns=python + 1)
    edited = with_ranks(evidence, host_lateness=known)
    if fires:
        assert found(RULE, edited).severity == "warning"
    else:
        assert quiet(RULE, edited)


def test_without_operators_nothing_can_be_said() -> None:
    rows = [launch(0, 5_000, 1), kernel("relu_kernel", 6_000, 26_000, 1)]
    assert "no operators were recorded" in skipped(RULE, by_hand(*rows))


def test_borderline_less_than_half_of_the_lateness_is_left_to_launch_bound() -> None:
    evidence = late_host(inside_operators=True)
    budget = evidence.traces[0].summary.ranks[0].budget
    assert budget is not None
    fifth = budget.parts.window_ns // 5
    even = HostLateness(rank=0, late_ns=2 * fifth, operator_ns=fifth, python_ns=fifth)
    assert found(RULE, with_ranks(evidence, host_lateness=even))
    less = HostLateness(rank=0, late_ns=2 * fifth + 2, operator_ns=fifth + 2, python_ns=fifth)
    assert "mostly in operators" in quiet(RULE, with_ranks(evidence, host_lateness=less))
