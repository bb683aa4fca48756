"""A folder's files in words: a line for each kind, read or left out and why."""

from __future__ import annotations

from stepscope.core.units import format_bytes
from stepscope.core.words import counted
from stepscope.results.evidence import Evidence


def lines(evidence: Evidence) -> tuple[tuple[str, str], ...]:
    """(``read`` or ``left out``, ``run2: 8 files of profiler traces, 512 MB``); what was read first.

    Empty where everything in the folder was of one kind and read.
    """
    found = evidence.files_found
    if len({each.kind for each in found}) < 2 and not evidence.unread:
        return ()
    read = [each for each in found if each.left_out is None]
    return tuple(
        (
            "read" if each.left_out is None else "left out",
            (f"{each.job}: " if each.job else "")
            + f"{counted(each.files, 'file')}, {format_bytes(each.bytes)}: {each.kind}"
            + ("" if each.left_out is None else f" ({each.left_out})"),
        )
        for each in (*read, *(each for each in found if each.left_out is not None))
    )
