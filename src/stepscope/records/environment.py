"""What a run ran on. Every fact that could not be had is None, with the reason in ``unavailable``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFact:
    index: int
    name: str
    uuid: str | None
    memory_bytes: int
    compute_capability: str | None
    driver_version: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NicFact:
    name: str
    kind: str  # ethernet | infiniband | loopback | virtual
    speed_bits_per_s: int | None
    up: bool


@dataclass(frozen=True, slots=True, kw_only=True)
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
    bf16: bool
    cuda_error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentRecord:
    host: str
    os: str
    kernel: str
    python: str
    cpu_model: str | None
    logical_cores: int
    physical_cores: int | None
    usable_cores: int  # after affinity and cgroup limits
    memory_bytes: int
    memory_available_bytes: int
    packages: Mapping[str, str]
    variables: Mapping[str, str]  # relevant ones, secrets masked
    scheduler: str | None  # slurm | pbs | lsf | kubernetes | None
    torch: TorchFact | None = None
    gpus: tuple[GpuFact, ...] = ()
    nics: tuple[NicFact, ...] = ()
    topology: str | None = None  # raw text of nvidia-smi topo -m
    unavailable: Mapping[str, str] = field(default_factory=dict)  # probe -> reason
