from __future__ import annotations

from stepscope.diagnose.unit_facts import fitted


def test_without_sizes_nothing_is_known() -> None:
    assert fitted([(0, 100), (10, 0)]) is None
