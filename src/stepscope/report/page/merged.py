"""The traces of a job in one file beside the page, for a trace viewer; or the command that writes it."""

from __future__ import annotations

from pathlib import Path

from stepscope.diagnose.trace_facts import trace_command
from stepscope.report.names import file_part
from stepscope.results.evidence import Evidence, TraceEvidence
from stepscope.traces.merge import merge_traces

MOST_BYTES = 32 << 20
"""Of a job's traces, as they lie on disk: more take longer to merge than the rest of a report."""

MOST_JOBS = 4


def merged_files(evidence: Evidence, folder: Path) -> dict[str, Path]:
    """Write each job's ranks into one file in ``folder``; name of the job -> its file. Jobs that are large, that are of one
    rank, or that come after many others have none. Raises DataError, WriteError.
    """
    found: dict[str, Path] = {}
    jobs = [job for job in evidence.traces if _small(job)][:MOST_JOBS]
    for job in jobs:
        name = "merged" if len(evidence.traces) == 1 else f"merged-{file_part(job.name)}"
        path = folder / f"{name}.json.gz"
        if job.name in found or path in found.values():
            continue
        clocks = job.summary.collectives.clocks if job.summary.collectives is not None else None
        merge_traces({p.facts.rank: Path(p.facts.file) for p in job.summary.ranks}, path, clocks=clocks)
        found[job.name] = path
    return found


def _small(job: TraceEvidence) -> bool:
    files = [Path(p.facts.file) for p in job.summary.ranks]
    return len(files) > 1 and all(f.is_file() for f in files) and sum(f.stat().st_size for f in files) <= MOST_BYTES


def how_to_get(job: TraceEvidence, file: Path | None) -> str:
    """What to open in a viewer, in words."""
    if file is not None:
        return f"{file.name} beside this page: all ranks on one clock"
    if len(job.summary.ranks) == 1:
        return job.summary.ranks[0].facts.file
    return f"merged.json.gz, which this command writes: {trace_command(job, '--merge merged.json.gz')}"
