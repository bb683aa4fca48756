"""How many examples a property test tries: few in ``make test``, the same at every run; many at random in the long run."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

SHORT = "the same at every run"
LONG = "long"
"""Chosen with ``pytest --hypothesis-profile=long``."""

_TIMES = 20

settings.register_profile(SHORT, deadline=None, derandomize=True, database=None)
settings.register_profile(LONG, deadline=None, derandomize=False, max_examples=100 * _TIMES, print_blob=True)


def examples(count: int, **more: Any) -> settings:
    """``count`` examples in the short run, 20 times as many in the long one."""
    return settings(max_examples=count * (_TIMES if settings.get_current_profile_name() == LONG else 1), **more)
