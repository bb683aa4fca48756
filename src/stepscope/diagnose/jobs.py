"""The verdict on the folder of a job, ended or running, and which verdicts on a running job are news."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from stepscope.core.errors import StepscopeError
from stepscope.diagnose.engine import diagnose, trace_rules
from stepscope.diagnose.narrator import soon
from stepscope.diagnose.verdict import Judged, judge
from stepscope.records.finding import JobChange
from stepscope.records.trace_summary import TraceSummary
from stepscope.results.evidence import Evidence, Source, TraceEvidence
from stepscope.results.profiled_job import ProfiledJob, read_profiled_job
from stepscope.store.layout import ProfileLayout
from stepscope.store.reader import rank_of, steps_in

FIRST_AT = 21
"""Steps of every rank that are there before a verdict is looked for: a cause is told from 20 timed ones on."""

EVERY_S, COST_SHARE = 5.0, 50
"""Between verdicts, at least; and so many times what one took: it is made beside ranks that are timed."""

TWICE = 2
"""Verdicts in a row that say the same, before a change is one: parts of nearly equal size take turns as the largest."""

SAME_CHANGE = 200
"""Steps between two changes, below which they are one."""

LATEST = 5_000
"""Steps of each rank that a verdict on a running job reads: to judge 2 x 1,000,000 took 3 s and 840 MB (2026-11)."""


def judge_job(folder: Path, captures: Sequence[TraceSummary] = (), *, last: int | None = None) -> Judged | None:
    """Judge the job in ``folder`` as it is now; None where it tells nothing. Raises DataError for damaged files.

    captures: what was read of a window's traces. last: judge no more than so many steps of each rank.
    """
    job = read_profiled_job(folder, last=last)
    if job is None:
        return None
    evidence = evidence_of(job, captures)
    return judge(evidence, diagnose(evidence, rules=trace_rules() if captures else ()))


def evidence_of(job: ProfiledJob, captures: Sequence[TraceSummary] = ()) -> Evidence:
    """The job alone, with what was read of a window's traces."""
    return Evidence(
        sources=(Source(path=job.folder, kind="profile"),),
        traces=tuple(TraceEvidence(name=job.name, summary=capture, job=job.folder) for capture in captures),
        profiled=(job,),
    )


class LiveVerdict:
    """Verdicts on a job that runs. clock: seconds that only grow."""

    def __init__(self, layout: ProfileLayout, clock: Callable[[], float] = time.monotonic) -> None:
        self._layout = layout
        self._clock = clock
        self._due = 0.0
        self._reported: object = None
        self._newer: object = None
        self._grown: set[object] = set()
        self._changed: list[int] = []
        self._times = 0

    def look(self) -> Judged | None:
        """Return a verdict that is news: the first, and each that says something else than the one before; else None.

        A folder that cannot be read just now, on a file system that is away, is looked at again later.
        """
        began = self._clock()
        if began < self._due:
            return None
        judged = None
        with suppress(OSError, StepscopeError):
            if self._stepped():
                judged = judge_job(self._layout.root, last=LATEST)
        took = self._clock() - began
        self._due = began + took + max(EVERY_S if judged else 0.0, COST_SHARE * took)
        return judged if judged is not None and self._is_news(judged) else None

    def _stepped(self) -> bool:
        """Return whether the last process of every rank has made enough steps: after a restart they count again."""
        last = {
            rank_of(path): path for path in sorted(self._layout.diaries(), key=lambda path: (len(path.name), path.name))
        }
        return bool(last) and min(map(steps_in, last.values())) >= FIRST_AT

    def _is_news(self, judged: Judged) -> bool:
        """Return whether the verdict is news: memory that grows and steps that take longer always are."""
        says = (judged.verdict.kind, judged.verdict.ranks)
        memory = judged.verdict.memory
        grown = {
            (growth.of, soon(judged.verdict) == growth) for growth in (memory.growth if memory is not None else ())
        }
        changed = [] if judged.verdict.change is None else self._slower(judged.verdict.change)
        if grown - self._grown or changed:
            self._grown |= grown
            self._changed += changed
            self._reported, self._newer = says, None
            return True
        if says == self._reported or judged.verdict.kind == "undecided":
            self._newer = None
            return False
        self._times = self._times + 1 if says == self._newer else 1
        self._newer = says
        if self._reported is not None and self._times < TWICE:
            return False
        self._reported, self._newer = says, None
        return True

    def _slower(self, change: JobChange) -> list[int]:
        """Return the step of a change for the worse where none near it was news: each look finds it a little aside."""
        near = any(abs(change.step - step) < SAME_CHANGE for step in self._changed)
        return [] if near or not change.slower else [change.step]
