"""What advice may assume of the machine: it names a tool only where the evidence shows that the tool is there."""

from __future__ import annotations

from stepscope.results.evidence import Evidence


def is_slurm(evidence: Evidence) -> bool:
    return evidence.environment is not None and evidence.environment.scheduler == "slurm"


def excluding(evidence: Evidence, host: str | None) -> str | None:
    """The command that keeps a job off ``host``; None where no scheduler is known."""
    return f"sbatch --exclude={host} JOB" if host is not None and is_slurm(evidence) else None


def is_amd(evidence: Evidence) -> bool:
    """Whether torch there was built for ROCm: nvidia-smi and NVLink are none of its tools."""
    torch = evidence.environment.torch if evidence.environment is not None else None
    return torch is not None and torch.hip_version is not None
