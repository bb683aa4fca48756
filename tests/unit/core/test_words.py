"""Plurals."""

from __future__ import annotations

import pytest

from stepscope.core.words import counted, plural


def test_nouns_have_their_own_plurals() -> None:
    nouns = ("copy", "family", "delay", "batch", "process", "box", "epoch", "all_reduce call", "memset")
    said = "copies families delays batches processes boxes epochs all_reduce calls memsets"
    assert " ".join(plural(2, noun) for noun in nouns) == said


@pytest.mark.parametrize(("number", "said"), [(0, "0 ranks"), (1, "1 rank"), (2, "2 ranks")])
def test_only_one_is_singular(number: int, said: str) -> None:
    assert counted(number, "rank") == said
    assert f"{number} {plural(number, 'rank')}" == said
