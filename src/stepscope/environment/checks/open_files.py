"""Open files per process: sockets between ranks and tensors from DataLoader workers each take one."""

from __future__ import annotations

from stepscope.environment.checks._common import Check, Outcome, passed, skipped, warned, why
from stepscope.records.environment import EnvironmentRecord

LOW = 4096


def run(record: EnvironmentRecord) -> Outcome:
    if record.limits is None:
        return skipped(why(record, "limits", "host"))
    soft = record.limits.open_files_soft
    if soft is None or soft >= LOW:
        return passed("unlimited" if soft is None else f"{soft} per process")
    hard = record.limits.open_files_hard
    reach = "65536" if hard is None or hard >= 65536 else str(hard)
    fix = f"ulimit -n {reach}" if hard is None or hard >= LOW else "raise the hard limit (limits.conf, --ulimit nofile)"
    return warned(f"{soft} per process: many ranks or DataLoader workers run out of them", fix=fix)


CHECK = Check(section="environment", title="open files", run=run)
