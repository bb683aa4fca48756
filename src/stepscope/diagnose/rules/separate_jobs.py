"""A table of nccl-tests is of several jobs that know nothing of each other: what looks like one job never used the network.

What
----
One output with several rank 0, on different processes, or several heads before one table, and each size in it several
times: the processes that a launcher started are jobs of their own.

Why
---
Without `MPI=1`, nccl-tests does not know of the other processes: each measures the GPUs that it sees itself. The rates
are those within a host, or of several jobs that disturb each other, never those of the network.

Known problems
--------------
Rows do not say which job they are of: the rates of all of them are shown together.

References
----------
nccl-tests, README.md (MPI=1), src/common.cu: the list of devices.
"""

from __future__ import annotations

from stepscope.core.units import format_bandwidth, format_size
from stepscope.core.words import counted, grouped, listed
from stepscope.diagnose.rule import Finding, Rule, Statement, finding, skipped
from stepscope.records.comm import CommRow
from stepscope.results.evidence import Evidence
from stepscope.results.labels import op_label, size_of


def check(evidence: Evidence) -> Statement:
    apart = grouped((row for row in evidence.comm if row.job_hosts), lambda row: (op_label(row), row.job_hosts))
    if not apart and not any(row.hosts for row in evidence.comm):
        return skipped("no table with a list of devices")
    return [_separate_jobs_finding(rows) for rows in apart.values()] or "each table lists the devices of one job"


def _separate_jobs_finding(rows: list[CommRow]) -> Finding:
    """Return the finding, with evidence, stake and advice: several jobs wrote one table, and none of them used the
    network."""
    first = rows[0]
    hosts, jobs = dict.fromkeys(first.job_hosts), len(first.job_hosts)
    apart_text = f"{jobs} independent jobs of {counted(first.world_size, 'rank')} each"
    largest = max(rows, key=lambda row: size_of(row) or 0)
    rates = [row.busbw_bytes_per_s or 0.0 for row in rows if size_of(row) == size_of(largest)]
    on = "" if "unknown" in hosts else f", on {listed(hosts, at_most=4)}"
    return finding(
        f"{op_label(first)}: {apart_text}{on}, and not one job of {jobs * first.world_size}: nothing crossed the network",
        f"{jobs} processes list a rank 0, and each size has {counted(jobs, 'row')}"
        if on
        else f"{jobs} heads before one table, and each size has {counted(jobs, 'row')}",
        f"{format_bandwidth(min(rates))} to {format_bandwidth(max(rates))} at {format_size(size_of(largest) or 0)}: the "
        "bandwidth within each job",
        severity="problem",
        confidence="certain: the output says it",
        advice=[
            ("build nccl-tests with MPI, so that the processes are ranks of one job", "make MPI=1 MPI_HOME=DIR"),
            "then start it again: its list of devices has each rank once, on all hosts",
        ],
        of=op_label(first),
        priority="wrong",
    )


RULE = Rule(
    symptom="several jobs wrote one table, and none of them used the network",
    needs=("comm",),
    look=check,
    decided_by="the lists of devices and the rows of each size",
    protocol=1,
)
