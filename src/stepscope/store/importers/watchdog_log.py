"""Output of a job in which torch's NCCL watchdog reports collectives that ran into their timeout."""

from __future__ import annotations

from stepscope.core.errors import DataError
from stepscope.records.imported import Imported, LeftOut
from stepscope.records.nccl import WatchdogTimeout
from stepscope.store.importer import OTHER_KIND, Candidate, Importer
from stepscope.store.log_lines import SUFFIXES, reports, timeouts
from stepscope.store.text_signs import signs_beside


def _recognises(candidate: Candidate) -> bool:
    return candidate.path.suffix in SUFFIXES and reports(candidate)


def _read(source: Candidate) -> Imported:
    reported: dict[WatchdogTimeout, None] = {}
    left_out = []
    for path in source.files:
        of_file = dict.fromkeys(timeouts(path))
        reported |= of_file
        if not of_file:
            left_out.append(LeftOut(path=str(path), reason=OTHER_KIND))
    if not reported:
        raise DataError(
            f"{source.path}: no readable report from the NCCL watchdog",
            why="a line names a timeout, but not the collective and the rank",
        )
    return Imported(
        format="watchdog_log",
        path=str(source.path),
        watchdog=tuple(reported),
        signs=signs_beside(source.files),
        left_out=tuple(left_out),
    )


IMPORTER = Importer(title="job log with NCCL watchdog timeouts", recognises=_recognises, read_files=_read, rank=97)
