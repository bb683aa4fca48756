"""Scheduler: which batch system or orchestrator started this shell, from its variables."""

from __future__ import annotations

from stepscope.machine.probes._common import Facts, Probe, ProbeContext

_MARKS = (
    ("slurm", ("SLURM_JOB_ID", "SLURM_JOBID")),
    ("pbs", ("PBS_JOBID",)),
    ("lsf", ("LSB_JOBID",)),
    ("kubernetes", ("KUBERNETES_SERVICE_HOST",)),
)


def run(context: ProbeContext) -> Facts:
    """``scheduler`` is None outside any of them. A batch job inside a pod counts as the batch job."""
    found = (name for name, marks in _MARKS if any(context.environ.get(mark) for mark in marks))
    return {"scheduler": next(found, None)}


PROBE = Probe(summary="Slurm, PBS, LSF or Kubernetes", run=run)
