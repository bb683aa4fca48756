"""What ``--columns`` says that a column means."""

from __future__ import annotations

from stepscope.core.errors import UsageError
from stepscope.core.words import unknown
from stepscope.records.imported import Stated
from stepscope.store.importers._columns import NAMES, meanings_of

_MEANINGS = (
    "step_time_ms",
    "step_time_s",
    "epoch_time_s",
    "tokens_per_s",
    "images_per_s",
    "peak_memory_gib",
    "time_us",
)


def require_meanings(stated: Stated) -> None:
    """Raises UsageError where it is not known what a stated meaning is."""
    for name, meaning in stated.columns.items():
        if meaning != "-" and all(each.scale is None for each in meanings_of(meaning)):
            known = [first for names in NAMES.values() for first in names.split()[:1]]
            raise UsageError(unknown("meaning", meaning, [*known, *_MEANINGS]), fix=f"--columns {name}=MEANING")
