"""What a plan takes from the environment record."""

from __future__ import annotations

from stepscope.matrix.machine import machine_of, threads_per_rank
from stepscope.records.environment import EnvironmentRecord, TorchFact

TORCH = TorchFact(
    version="2", cuda_version="12", nccl_version="2", hip_version=None, gloo=True, nccl=True, cuda_available=True,
    device_count=2, device_names=("a", "b"), device_memory_bytes=(1, 1), bf16=True, device_capabilities=("10.0", "9.0"),
)  # fmt: skip


def record(torch: TorchFact | None, unavailable: dict[str, str] | None = None) -> EnvironmentRecord:
    return EnvironmentRecord(
        host="h", os="o", kernel="k", python="3", cpu_model=None, logical_cores=8, physical_cores=None, usable_cores=6,
        memory_bytes=1, memory_available_bytes=1, packages={}, variables={}, scheduler=None, torch=torch,
        unavailable=unavailable or {},
    )  # fmt: skip


def test_the_weakest_gpu_decides() -> None:
    machine = machine_of(record(TORCH))
    assert (machine.num_gpus, machine.compute_capability, machine.usable_cores) == (2, "9.0", 6)


def test_without_torchs_facts_there_are_no_gpus_and_the_reason_is_kept() -> None:
    machine = machine_of(record(None, {"torch": "probe timed out"}))
    assert (machine.num_gpus, machine.no_gpu_reason, machine.gloo) == (0, "probe timed out", None)


def test_cores_are_divided_among_the_ranks() -> None:
    assert [threads_per_rank("auto", usable_cores=6, world_size=n) for n in (1, 2, 4, 8)] == [6, 3, 1, 1]
    assert threads_per_rank(5, usable_cores=6, world_size=4) == 5
