"""How many examples a property test tries: few in ``make test``, the same at every run; many at random in the long run."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

SHORT = "the same at every run"
LONG = "long"
"""Chosen with ``pytest --hypothesis-profile=long``."""

_TIMES = 40

settings.register_profile(SHORT, deadline=None, derandomize=True, database=None, max_examples=50)
settings.register_profile(LONG, deadline=None, derandomize=False, max_examples=50 * _TIMES, print_blob=True)


def examples(count: int, **more: Any) -> settings:
    """Half of ``count`` examples in the short run, 40 times as many in the long one."""
    few, long = max(5, count // 2), settings.get_current_profile_name() == LONG
    return settings(max_examples=few * _TIMES if long else few, **more)
