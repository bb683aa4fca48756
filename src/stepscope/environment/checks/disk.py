"""Room for run folders where runs are written."""

from __future__ import annotations

from stepscope.core.units import format_bytes
from stepscope.environment.checks._common import Check, Outcome, failed, passed, skipped, warned, why
from stepscope.records.environment import EnvironmentRecord

LOW_BYTES = 2_000_000_000  # a profiled run of a few ranks
FULL_BYTES = 50_000_000  # samples alone


def run(record: EnvironmentRecord) -> Outcome:
    if record.disk is None:
        return skipped(why(record, "disk", "host"))
    found = f"{format_bytes(record.disk.free_bytes)} free in {record.disk.path}"
    fix = "free some space or write runs elsewhere (-o DIR)"
    if record.disk.free_bytes < FULL_BYTES:
        return failed(found, fix=fix)
    if record.disk.free_bytes < LOW_BYTES:
        return warned(f"{found}: traces of a profiled run may not fit", fix=fix)
    return passed(found)


CHECK = Check(section="environment", title="disk space", run=run, order=6)
