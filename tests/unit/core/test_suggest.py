from __future__ import annotations

from stepscope.core.words import MOST_LISTED, unknown


def test_a_few_names_are_listed() -> None:
    assert unknown("rule", "hangs", ["hang", "straggler"]) == (
        "unknown rule 'hangs'; did you mean 'hang'? Known: hang, straggler"
    )


def test_very_many_are_not() -> None:
    names = [f"name-{n}" for n in range(MOST_LISTED)] + ["hang"]
    assert unknown("rule", "hangs", names) == "unknown rule 'hangs'; did you mean 'hang'?"
    assert unknown("rule", "zzz", names) == f"unknown rule 'zzz'; {MOST_LISTED + 1} are known"
