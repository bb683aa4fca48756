"""Made-up machines for the tests of checks, overview and doctor, and why something could not be found."""

from __future__ import annotations

import dataclasses
from typing import Any

from stepscope.core.errors import Unavailable
from stepscope.records.environment import EnvironmentRecord, FilesystemFact, GpuFact, LimitsFact, NicFact, TorchFact

GIB = 2**30


def reason(found: object) -> str:
    assert isinstance(found, Unavailable), found
    return found.reason


def torch_fact(**changes: Any) -> TorchFact:
    base = TorchFact(
        version="2.13.0+cpu", cuda_version=None, nccl_version=None, hip_version=None, gloo=True, nccl=False,
        cuda_available=False, device_count=0, device_names=(), device_memory_bytes=(), bf16=True,
        bf16_cpu_native=True, intra_op_threads=8,
    )  # fmt: skip
    return dataclasses.replace(base, **changes)


def cuda_torch(count: int, name: str = "NVIDIA H100 80GB HBM3", **changes: Any) -> TorchFact:
    return torch_fact(
        **{
            "version": "2.13.0+cu130", "cuda_version": "13.0", "nccl_version": "2.27.3", "nccl": True,
            "cuda_available": count > 0, "device_count": count, "device_names": (name,) * count,
            "device_memory_bytes": (80 * GIB,) * count,
        } | changes
    )  # fmt: skip


def gpu(index: int, name: str = "NVIDIA H100 80GB HBM3", **changes: Any) -> GpuFact:
    base = GpuFact(
        index=index, name=name, uuid=f"GPU-{index}", memory_bytes=80 * GIB, compute_capability="9.0",
        driver_version="580.1", memory_used_bytes=GIB // 2, pcie_generation_max=5, pcie_width=16, pcie_width_max=16,
        power_limit_w=700.0, power_limit_default_w=700.0, mig=False,
    )  # fmt: skip
    return dataclasses.replace(base, **changes)


def laptop(**changes: Any) -> EnvironmentRecord:
    """8 cores, no GPU, no scheduler, everything in order."""
    base = EnvironmentRecord(
        host="laptop", os="Debian GNU/Linux 13", kernel="6.12.0", python="3.12.1", cpu_model="Some CPU",
        logical_cores=8, physical_cores=4, usable_cores=8, memory_bytes=16 * GIB, memory_available_bytes=12 * GIB,
        packages={"numpy": "2.4.6"}, variables={}, scheduler=None, torch=torch_fact(),
        nics=(
            NicFact(name="eth0", kind="ethernet", speed_bits_per_s=10**10, up=True, addresses=("10.0.0.5",)),
            NicFact(name="lo", kind="loopback", speed_bits_per_s=None, up=True, addresses=("127.0.0.1",)),
        ),
        unavailable={"gpus": "no NVIDIA driver library", "topology": "nvidia-smi is not on PATH"},
        limits=LimitsFact(open_files_soft=65536, open_files_hard=None, locked_memory_bytes=8 * 2**20),
        shared_memory=FilesystemFact(path="/dev/shm", total_bytes=8 * GIB, free_bytes=8 * GIB),
        disk=FilesystemFact(path="/home/me", total_bytes=500 * 10**9, free_bytes=100 * 10**9),
        hostname_addresses=("127.0.1.1",), scheduling_policy="other", batch_scheduling=True, numa_nodes=1,
    )  # fmt: skip
    return dataclasses.replace(base, **changes)


def server(count: int = 4, *, cell: str = "NV18", **changes: Any) -> EnvironmentRecord:
    """GPUs of one model, all pairs joined by ``cell``, 16 cores each, an active InfiniBand device."""
    names = [f"GPU{i}" for i in range(count)]
    rows = [[" X " if i == j else cell for j in range(count)] for i in range(count)]
    lines = ["\t" + "\t".join(names) + "\tCPU Affinity\tNUMA Affinity"]
    lines += ["\t".join([name, *row, "0-63", "0"]) for name, row in zip(names, rows, strict=True)]
    nics = (*laptop().nics, NicFact(name="mlx5_0", kind="infiniband", speed_bits_per_s=400 * 10**9, up=True, rdma=True))
    return laptop(
        **{
            "host": "node1", "logical_cores": 16 * count, "usable_cores": 16 * count, "torch": cuda_torch(count),
            "gpus": tuple(gpu(i) for i in range(count)), "topology": "\n".join(lines) + "\n", "nics": nics,
            "unavailable": {}, "hostname_addresses": ("10.0.0.5",), "variables": {"OMP_NUM_THREADS": "8"},
            "limits": LimitsFact(open_files_soft=65536, open_files_hard=None, locked_memory_bytes=None),
        } | changes
    )  # fmt: skip
