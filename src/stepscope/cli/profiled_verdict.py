"""The verdict on the folder of a profiled job: read, judged, kept as verdict.json, shown."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from stepscope.cli.findings import show_verdict
from stepscope.core.errors import StepscopeError
from stepscope.results.evidence import Evidence, Source, TraceEvidence
from stepscope.results.profiled_job import read_profiled_job
from stepscope.store.layout import ProfileLayout
from stepscope.store.writer import write_record

if TYPE_CHECKING:
    from stepscope.diagnose.verdict import Judged
    from stepscope.records.trace_summary import TraceSummary


def show_profiled(
    layout: ProfileLayout, captures: Mapping[str, TraceSummary], *, running: bool = False
) -> Judged | None:
    """Print the verdict on the job and return it; None, and nothing printed, where its folder tells nothing.

    captures: what was read of the window's traces. running: the verdict is one so far. Raises DataError for damaged files.
    """
    from stepscope.diagnose.engine import diagnose, trace_rules
    from stepscope.diagnose.verdict import judge

    job = read_profiled_job(layout.root)
    if job is None:
        return None
    evidence = Evidence(
        sources=(Source(path=layout.root, kind="profile"),),
        traces=tuple(TraceEvidence(name=job.name, summary=each, job=layout.root) for each in captures.values()),
        profiled=(job,),
    )
    judged = judge(evidence, diagnose(evidence, rules=trace_rules()))
    if judged is None:
        return None
    with suppress(StepscopeError):  # it is derived: a full disk is no reason to say nothing
        write_record(layout.verdict, judged.verdict)
    show_verdict(judged.verdict, running=running)
    return judged
