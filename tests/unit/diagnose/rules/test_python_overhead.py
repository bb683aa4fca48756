"""Python between the operators: idle time in which the host is in no operator."""

from __future__ import annotations

import pytest
from tests.borders import late_host
from tests.hand_events import kernel, launch
from tests.trace_evidence import by_hand, found, skipped

from stepscope.diagnose.rules.python_overhead import RULE


def test_a_host_in_python_between_launches_fires() -> None:
    finding = found(RULE, late_host(inside_operators=False))
    assert finding.severity == "problem"
    assert finding.stake_fraction == pytest.approx(9 * 73 / 926, abs=0.02)
    assert "Python" in finding.title
    assert "py-spy record" in (finding.advice[0].command or "")


def test_without_operators_nothing_can_be_said() -> None:
    rows = [launch(0, 5_000, 1), kernel("relu_kernel", 6_000, 26_000, 1)]
    assert "no operators were recorded" in skipped(RULE, by_hand(*rows))
