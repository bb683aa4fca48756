"""What the rules about a device that idles have in common: each fires on its own cause alone, from the same shares on."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.trace_evidence import found, generated, quiet, with_idle

from stepscope.diagnose.engine import diagnose
from stepscope.diagnose.rule import Rule
from stepscope.diagnose.rules import data_loading, host_sync, launch_bound

IDLE = (data_loading.RULE, host_sync.RULE, launch_bound.RULE)

BORDERS = pytest.mark.parametrize(("share", "severity"), [(0.0999, None), (0.1001, "warning"), (0.2001, "problem")])
"""A tenth and a fifth of the window."""


def fires_alone(rule: Rule, folder: Path, *, late_kind: str) -> None:
    """The rule, and none of the others, finds a planted wait of ``late_kind``."""
    slow = dict.fromkeys(range(2), 4_000_000)
    evidence = generated(folder, world=2, steps=4, late=slow, late_kind=late_kind, transfer_ns=10_000)
    finding = found(rule, evidence)
    assert finding.severity == "problem"
    assert finding.stake_fraction is not None
    assert finding.stake_fraction > 0.2
    assert "mean of 2 ranks" in finding.evidence[0]
    assert {f.rule for f in diagnose(evidence, rules=IDLE).findings} == {rule.name}


def quiet_when_busy(rule: Rule, folder: Path) -> None:
    """A device that is kept busy is no finding."""
    assert "limit 10%" in quiet(rule, generated(folder, world=2, steps=4))


def borderline(rule: Rule, folder: Path, share: float, severity: str | None, *, cause: str) -> None:
    """Idle for ``share`` of the window by ``cause``: None is quiet."""
    evidence = with_idle(generated(folder, world=2), **{cause: share})
    if severity is None:
        assert quiet(rule, evidence)
    else:
        assert found(rule, evidence).severity == severity
