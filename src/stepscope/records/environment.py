"""What a run ran on. Every fact that could not be had is None, with the reason in ``unavailable``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from stepscope.core.dataclass import record


@record
class GpuFact:
    """One GPU as the driver (NVML) sees it, before CUDA_VISIBLE_DEVICES."""

    index: int
    name: str
    uuid: str | None
    memory_bytes: int | None  # None: shared with the host (integrated GPUs) or not reported
    compute_capability: str | None
    driver_version: str | None
    memory_used_bytes: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None  # lanes in use; the generation in use drops when idle and says nothing
    pcie_width_max: int | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    mig: bool | None = None  # split into MIG slices


@record
class NicFact:
    name: str
    kind: str  # ethernet | infiniband | roce | loopback | virtual
    speed_bits_per_s: int | None
    up: bool
    addresses: tuple[str, ...] = ()  # IP addresses, of interfaces that carry IP
    rdma: bool = False  # an RDMA device (mlx5_0), not an IP interface: never in *_SOCKET_IFNAME
    mtu_bytes: int | None = None


@record
class TorchFact:
    """What only torch knows; from ``python -m stepscope.rank --probe``."""

    version: str
    cuda_version: str | None
    nccl_version: str | None
    hip_version: str | None
    gloo: bool
    nccl: bool
    cuda_available: bool
    device_count: int
    device_names: tuple[str, ...]
    device_memory_bytes: tuple[int, ...]
    bf16: bool  # GPUs: in hardware, on all of them; no GPU: a bf16 matrix product runs on the CPU
    cuda_error: str | None = None
    bf16_cpu_native: bool | None = None  # the CPU has bf16 instructions that torch uses
    device_capabilities: tuple[str, ...] = ()
    no_peer_access: tuple[tuple[int, int], ...] = ()  # GPU pairs whose memory cannot be reached directly
    intra_op_threads: int | None = None  # what one process takes when nothing is set


@record
class LimitsFact:
    """Limits of this process (``ulimit``); None inside means unlimited."""

    open_files_soft: int | None
    open_files_hard: int | None
    locked_memory_bytes: int | None


@record
class FilesystemFact:
    path: str
    total_bytes: int
    free_bytes: int  # what an ordinary user may still write


@record
class EnvironmentRecord:
    host: str
    os: str
    kernel: str
    python: str
    cpu_model: str | None
    logical_cores: int
    physical_cores: int | None
    usable_cores: int  # after affinity and cgroup limits
    memory_bytes: int  # after cgroup limits
    memory_available_bytes: int  # after cgroup limits
    packages: Mapping[str, str]
    variables: Mapping[str, str]  # relevant ones, secrets masked
    scheduler: str | None  # slurm | pbs | lsf | kubernetes | None
    torch: TorchFact | None = None
    gpus: tuple[GpuFact, ...] = ()
    nics: tuple[NicFact, ...] = ()
    topology: str | None = None  # raw text of nvidia-smi topo -m
    unavailable: Mapping[str, str] = field(default_factory=dict)  # probe -> reason
    numa_nodes: int | None = None
    cpu_quota_cores: float | None = None  # cgroup CPU quota; None: no quota
    memory_limit_bytes: int | None = None  # cgroup memory limit; None: no limit
    limits: LimitsFact | None = None
    shared_memory: FilesystemFact | None = None  # /dev/shm
    disk: FilesystemFact | None = None  # the working directory's file system
    hostname_addresses: tuple[str, ...] = ()  # what the own host name resolves to
    scheduling_policy: str | None = None  # other | batch | idle | fifo | rr | deadline
    batch_scheduling: bool | None = None  # SCHED_BATCH is allowed
    clock_synchronised: bool | None = None  # the kernel's clock follows NTP or PTP
    extra: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # third-party probes: key -> facts
