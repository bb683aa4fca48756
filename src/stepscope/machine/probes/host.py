"""The host and this shell: names, operating system, limits, disk; batch system, versions of packages, variables.

NICs: network interfaces and RDMA devices with speed and state.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import platform
import re
import resource
import shutil
import socket
import struct
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import psutil

from stepscope.core.errors import Unavailable
from stepscope.machine.probes._common import Facts, ProbeContext, probe, read_text
from stepscope.records.environment import FilesystemFact, LimitsFact, NicFact

RESOLVE_TIMEOUT_S = 5.0
_POLICIES = {0: "other", 1: "fifo", 2: "rr", 3: "batch", 5: "idle", 6: "deadline"}


@probe("host, operating system, limits, scheduling, disk")
def host(context: ProbeContext) -> Facts:
    """Host facts."""
    name = socket.gethostname()
    return {
        "host": name,
        "os": _distribution_name(context.root) or platform.system(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "hostname_addresses": resolve(name, timeout_s=RESOLVE_TIMEOUT_S),
        "limits": _process_limits(),
        "shared_memory": filesystem(context.root / "dev/shm"),
        "disk": filesystem(context.cwd),
        "scheduling_policy": _scheduling_policy(),
        "batch_scheduling": batch_scheduling_allowed(),
        "clock_synchronised": clock_synchronised(),
    }


_TIMEX_BYTES, _TIMEX_STATUS = 208, 40
_STA_UNSYNC = 0x0040
"""Layout of struct timex of 64-bit Linux, its field ``status``, and the bit that a daemon clears (adjtimex(2))."""


def clock_synchronised() -> bool | Unavailable:
    """Whether something (NTP, PTP) keeps this kernel's clock, as the kernel itself has it."""
    if platform.system() != "Linux" or sys.maxsize < 2**32:
        return Unavailable(f"{platform.system()} does not report it")
    timex = ctypes.create_string_buffer(_TIMEX_BYTES)  # all 0: asked, nothing changed
    if ctypes.CDLL(None, use_errno=True).adjtimex(timex) < 0:
        return Unavailable(f"adjtimex: {os.strerror(ctypes.get_errno())}")
    (status,) = struct.unpack_from("i", timex, _TIMEX_STATUS)
    return not status & _STA_UNSYNC


def resolve(name: str, *, timeout_s: float) -> tuple[str, ...] | Unavailable:
    """IP addresses that ``name`` resolves to; the resolver may hang for minutes, so it gets ``timeout_s`` seconds."""
    answer: list[tuple[str, ...] | Unavailable] = []

    def ask() -> None:
        try:
            entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except OSError as error:
            answer.append(Unavailable(f"the host name {name!r} does not resolve: {error.strerror or error}"))
        else:
            answer.append(tuple(dict.fromkeys(str(entry[4][0]) for entry in entries)))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(timeout_s)
    return (
        answer[0] if answer else Unavailable(f"resolving {name!r} took over {timeout_s:g} s: the name server is slow")
    )


def batch_scheduling_allowed() -> bool | Unavailable:
    """Whether this process may run under SCHED_BATCH; tried on a thread of its own, so nothing stays changed."""
    if not hasattr(os, "sched_setscheduler"):
        return Unavailable(f"{platform.system()} has no SCHED_BATCH")
    allowed: list[bool] = []

    def attempt() -> None:
        try:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # 0: the calling thread only
        except OSError:
            allowed.append(False)
        else:
            allowed.append(True)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    return allowed[0]


def filesystem(path: Path) -> FilesystemFact | Unavailable:
    """Size and free space of the file system that holds ``path``."""
    try:
        usage = shutil.disk_usage(path)
    except OSError as error:
        return Unavailable(f"{path}: {error.strerror}")
    return FilesystemFact(path=str(path.absolute()), total_bytes=usage.total, free_bytes=usage.free)


def _scheduling_policy() -> str | Unavailable:
    if not hasattr(os, "sched_getscheduler"):
        return Unavailable(f"{platform.system()} does not report it")
    number = os.sched_getscheduler(0) & ~getattr(os, "SCHED_RESET_ON_FORK", 0)
    return _POLICIES.get(number, str(number))


def _process_limits() -> LimitsFact:
    """Return the limits of open files and locked memory; None: unlimited."""

    def value(limit: int) -> int | None:
        return None if limit == resource.RLIM_INFINITY else limit

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return LimitsFact(open_files_soft=value(soft), open_files_hard=value(hard), locked_memory_bytes=value(locked))


def _distribution_name(root: Path) -> str | None:
    text = read_text(root / "etc/os-release") or ""
    pairs = (line.partition("=") for line in text.splitlines())
    return next((value.strip("\"'") for key, _, value in pairs if key == "PRETTY_NAME"), None)


_MARKS = (
    ("slurm", ("SLURM_JOB_ID", "SLURM_JOBID")),
    ("pbs", ("PBS_JOBID",)),
    ("lsf", ("LSB_JOBID",)),
    ("kubernetes", ("KUBERNETES_SERVICE_HOST",)),
)


@probe("Slurm, PBS, LSF or Kubernetes")
def scheduler(context: ProbeContext) -> Facts:
    """``scheduler`` is None outside any of them. A batch job inside a pod counts as the batch job."""
    schedulers = (name for name, marks in _MARKS if any(context.environ.get(mark) for mark in marks))
    return {"scheduler": next(schedulers, None)}


_PACKAGES = frozenset({
    "accelerate", "apex", "datasets", "deepspeed", "dask", "distributed", "fairscale", "flash-attn", "horovod",
    "jax", "lightning", "megatron-core", "mkl", "mpi4py", "msgspec", "numpy", "peft", "psutil", "pytorch-lightning",
    "pytorch-triton", "pytorch-triton-rocm", "ray", "scipy", "stepscope", "tensorboard", "tokenizers", "torch",
    "torchaudio", "torchdata", "torchtext", "torchtitan", "torchvision", "transformer-engine", "transformers",
    "triton", "wandb", "xformers",
})  # fmt: skip
_PACKAGE_PREFIXES = ("nvidia-", "intel-", "rocm-", "amdsmi", "cuda-")


@probe("versions of the packages in use")
def packages(context: ProbeContext) -> Facts:  # noqa: ARG001
    """Versions by normalised name (PEP 503), sorted."""
    versions: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        raw = distribution.metadata["Name"] if distribution.metadata else None
        if not raw:
            continue  # a half-removed installation leaves such folders
        name = re.sub(r"[-_.]+", "-", raw).lower()
        if name in _PACKAGES or name.startswith(_PACKAGE_PREFIXES):
            versions.setdefault(name, distribution.version)
    return {"packages": dict(sorted(versions.items()))}


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


@probe("NCCL, gloo, OpenMP, torch, CUDA and launcher variables")
def variables(context: ProbeContext) -> Facts:
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


_ARPHRD_LOOPBACK = "772"
_ARPHRD_INFINIBAND = "32"
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*Gb/sec")


@probe("network interfaces and RDMA devices")
def nics(context: ProbeContext) -> Facts | Unavailable:
    """Interfaces first, then RDMA devices (mlx5_0, ...), each sorted by name. Speeds in bit/s per direction."""
    try:
        interfaces = _network_interfaces(context.root / "sys/class/net")
    except OSError as error:
        return Unavailable(f"the network interfaces cannot be listed: {error}")
    return {"nics": (*interfaces, *rdma_devices(context.root / "sys/class/infiniband"))}


def _network_interfaces(sysfs: Path) -> tuple[NicFact, ...]:
    """Return the network interfaces with their kind and speed, bits/s."""
    addresses = psutil.net_if_addrs()
    families = (socket.AF_INET, socket.AF_INET6)
    return tuple(
        NicFact(
            name=name,
            kind=interface_kind(sysfs / name, name),
            speed_bits_per_s=stats.speed * 1_000_000 if stats.speed > 0 else None,
            up=stats.isup,
            mtu_bytes=stats.mtu or None,
            addresses=tuple(a.address.partition("%")[0] for a in addresses.get(name, ()) if a.family in families),
        )
        for name, stats in sorted(psutil.net_if_stats().items())
    )


def interface_kind(folder: Path, name: str) -> str:
    """loopback | infiniband | virtual (no hardware behind it) | ethernet."""
    kind = read_text(folder / "type")
    if kind == _ARPHRD_LOOPBACK or name in ("lo", "lo0"):
        return "loopback"
    if kind == _ARPHRD_INFINIBAND:
        return "infiniband"
    if folder.is_dir() and not (folder / "device").exists():
        return "virtual"
    return "ethernet"


def rdma_devices(folder: Path) -> tuple[NicFact, ...]:
    """Every port of every device under /sys/class/infiniband; ports after the first are named ``mlx5_0:2``."""
    ports: list[NicFact] = []
    for port in sorted(folder.glob("*/ports/*")):
        device = port.parent.parent.name
        rate = _RATE.search(read_text(port / "rate") or "")
        ethernet = (read_text(port / "link_layer") or "").lower() == "ethernet"
        ports.append(
            NicFact(
                name=device if port.name == "1" else f"{device}:{port.name}",
                kind="roce" if ethernet else "infiniband",
                speed_bits_per_s=round(float(rate[1]) * 1e9) if rate else None,
                up="ACTIVE" in (read_text(port / "state") or ""),
                rdma=True,
            )
        )
    return tuple(ports)
