"""Time sources, so that everything else can be tested with a fake one."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

NS_PER_S = 1_000_000_000

Clock = Callable[[], int]
"""A monotonic clock in integer nanoseconds."""

monotonic_ns: Clock = time.perf_counter_ns


def utc_now() -> str:
    """Now, as ISO 8601 in UTC with seconds: ``2026-11-20T23:21:07Z``."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
