"""Plurals."""

from __future__ import annotations

import pytest

from stepscope.core.words import counted, plural


@pytest.mark.parametrize(("number", "said"), [(0, "0 ranks"), (1, "1 rank"), (2, "2 ranks")])
def test_only_one_is_singular(number: int, said: str) -> None:
    assert counted(number, "rank") == said
    assert f"{number} {plural(number, 'rank')}" == said
