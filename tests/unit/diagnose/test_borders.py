"""Every limit that a rule declares decides: evidence just below it and just above it (tests/borders.py)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.borders import BORDERS, Border

from stepscope.diagnose.engine import check
from stepscope.diagnose.rules import REGISTRY
from stepscope.records.finding import Finding


def found(border: Border, at: float, folder: Path) -> tuple[Finding, ...]:
    folder.mkdir()
    outcome = check(REGISTRY.load(border.rule), border.make(at, folder))
    return outcome if isinstance(outcome, tuple) else ()


@pytest.mark.parametrize("border", BORDERS, ids=lambda each: f"{each.rule}-{each.limit}")
def test_a_limit_decides_and_a_share_is_of_its_whole(border: Border, tmp_path: Path) -> None:
    limits = REGISTRY.load(border.rule).thresholds
    limit = limits[border.limit].value
    below = found(border, limit * (1 - border.by), tmp_path / "below")
    above = found(border, limit * (1 + border.by), tmp_path / "above")
    fires = [any(border.severity in (None, each.severity) for each in side) for side in (below, above)]
    assert fires == [not border.above, border.above]
    wholes = {each.unit.removeprefix("share ") for each in limits.values()}
    for each in (*below, *above):
        assert {*re.findall(r"% (of the (?:time|window|steps?))\b", each.title)} <= wholes
        assert each.share is None or (each.stake_fraction or 0.0) <= each.share
        if border.limit in ("warning", "problem") and each.stake_fraction is not None:
            taken = each.stake_fraction if each.share is None else each.share
            assert limits[border.limit].of(taken) in each.title
