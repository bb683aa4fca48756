"""Variables: the part of the environment that steers launchers, communication and threads, secrets masked."""

from __future__ import annotations

import re
from collections.abc import Mapping

from stepscope.machine.probes._common import Facts, Probe, ProbeContext

MASK = "***"

PREFIXES = (
    "NCCL_", "RCCL_", "GLOO_", "TP_SOCKET", "UCC_", "UCX_", "FI_", "OFI_", "MSCCL", "SHARP_", "IB_",
    "OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "NUMEXPR_", "MALLOC_", "ONEDNN_", "DNNL_",
    "TORCH_", "TORCHELASTIC_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "PYTORCH_", "PET_", "ATEN_",
    "CUDA_", "CUDNN_", "CUBLAS_", "NVIDIA_", "NVTE_", "HIP_", "ROCR_", "HSA_", "GPU_",
    "SLURM_", "SBATCH_", "PBS_", "LSB_", "OMPI_", "PMI_", "PMIX_", "MPI_", "KUBERNETES_", "STEPSCOPE_",
)  # fmt: skip
NAMES = frozenset({
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE",
    "GROUP_WORLD_SIZE", "LOCAL_SIZE", "MASTER_ADDR", "MASTER_PORT", "LD_PRELOAD", "LD_LIBRARY_PATH", "XDG_CACHE_HOME",
})  # fmt: skip

_SECRET_NAME = re.compile(r"TOKEN|KEY|SECRET|PASSW|PASSPHRASE|CREDENTIAL|COOKIE|JWT|AUTH", re.IGNORECASE)
_SECRET_VALUE = re.compile(
    r"[a-z][a-z0-9+.-]*://[^/?#\s]*@"  # a URL with credentials
    r"|[?&;,\s](?:[\w.-]*(?:token|key|secret|passw|signature|sig|credential)[\w.-]*)="  # ... or with them as a parameter
    r"|^(?:[\w.-]*(?:token|key|secret|passw|credential)[\w.-]*)="  # an assignment kept inside another variable
    r"|\b(?:bearer|basic)\s+\S{8,}"
    r"|\b(?:gh[pousr]_|github_pat_|hf_|sk-|xox[abprs]-|AKIA|ASIA|eyJ[\w-]{10,}\.)",
    re.IGNORECASE,
)


def run(context: ProbeContext) -> Facts:
    """Relevant variables, sorted by name."""
    return {"variables": relevant(context.environ)}


def relevant(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of ``environ`` that matter, with ``***`` in place of anything that may be a secret."""
    names = sorted(name for name in environ if name in NAMES or name.startswith(PREFIXES))
    return {name: masked(name, environ[name]) for name in names}


def masked(name: str, value: str) -> str:
    """``value``, or ``***`` when the name or the value looks like a secret. Masks too much rather than too little."""
    if value and (_SECRET_NAME.search(name) or _SECRET_VALUE.search(value)):
        return MASK
    return value


PROBE = Probe(summary="NCCL, gloo, OpenMP, torch, CUDA and launcher variables", run=run)
