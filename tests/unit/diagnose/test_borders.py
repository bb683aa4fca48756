"""Every limit that a rule declares decides: evidence just below it and just above it (tests/borders.py)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.borders import BORDERS, Border

from stepscope.diagnose.engine import check
from stepscope.diagnose.rules import REGISTRY


@pytest.mark.parametrize("border", BORDERS, ids=lambda each: f"{each.rule}-{each.limit}")
def test_a_limit_decides(border: Border, tmp_path: Path) -> None:
    rule = REGISTRY.load(border.rule)
    limit = rule.thresholds[border.limit].value
    fires = []
    for side, at in (("below", limit * (1 - border.by)), ("above", limit * (1 + border.by))):
        folder = tmp_path / side
        folder.mkdir()
        outcome = check(rule, border.make(at, folder))
        found = outcome if isinstance(outcome, tuple) else ()
        fires.append(any(border.severity in (None, each.severity) for each in found))
    assert fires == [not border.above, border.above]


def test_every_rule_with_a_limit_has_a_border() -> None:
    """Limits of 0 have nothing below them: that one is too many, a firing test of the rule shows."""
    limited = {key for key in REGISTRY.names() if any(each.value for each in REGISTRY.load(key).thresholds.values())}
    assert limited == {each.rule for each in BORDERS}
