from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.machines import GIB, cuda_torch, gpu, laptop, server, torch_fact

from stepscope.machine.checks import REGISTRY
from stepscope.machine.checks.network import nccl_choice
from stepscope.machine.judging import Outcome, Status
from stepscope.machine.overview import overview
from stepscope.machine.probes import REGISTRY as PROBES
from stepscope.machine.verdicts import SECTIONS, judge, tally
from stepscope.records.environment import EnvironmentRecord, FilesystemFact, LimitsFact, NicFact


def outcome(key: str, record: EnvironmentRecord) -> Outcome:
    return REGISTRY.load(key).run(record)


def statuses(record: EnvironmentRecord) -> dict[str, Status]:
    return {verdict.key: verdict.outcome.status for verdict in judge(record)}


def test_a_laptop_without_a_gpu_is_a_normal_machine() -> None:
    found = statuses(laptop())
    assert not [key for key, status in found.items() if status in (Status.WARN, Status.FAIL)]
    assert found["gpu_visibility"] is Status.SKIP
    assert found["nccl"] is Status.SKIP
    assert found["torch"] is Status.PASS


def test_a_server_in_order_passes_everything_that_applies() -> None:
    found = statuses(server())
    assert not [key for key, status in found.items() if status in (Status.WARN, Status.FAIL)]
    assert found["gpu_links"] is Status.PASS
    assert found["rdma"] is Status.PASS


@pytest.mark.parametrize("key", REGISTRY.names())
def test_a_record_without_any_optional_fact_never_breaks_a_check(key: str) -> None:
    bare = laptop(
        torch=None, nics=(), limits=None, shared_memory=None, disk=None, hostname_addresses=(), batch_scheduling=None,
        scheduling_policy=None, cpu_model=None, physical_cores=None, numa_nodes=None, unavailable={},
    )  # fmt: skip
    found = outcome(key, bare)
    assert found.status is not Status.PASS or key in _PASS_WITHOUT_FACTS
    assert found.message


_PASS_WITHOUT_FACTS = {"usable_cores", "memory", "p2p_disabled", "debug_variables", "stale_world", "socket_interface"}
"""They judge variables and required fields, which every record has."""


@pytest.mark.parametrize("key", REGISTRY.names())
def test_every_check_has_a_known_section_a_title_and_a_documented_function(key: str) -> None:
    check = REGISTRY.load(key)
    assert check.section in SECTIONS
    assert check.title
    assert check.run.__doc__


NIC_DOWN = NicFact(name="mlx5_0", kind="infiniband", speed_bits_per_s=None, up=False, rdma=True)
SLURM = {"SLURM_JOB_ID": "7", "SLURM_NTASKS_PER_NODE": "1", "SLURM_CPUS_PER_TASK": "16"}

FIRING: list[tuple[str, EnvironmentRecord, Status, str]] = [
    ("torch", laptop(torch=None, unavailable={"torch": "torch is not installed"}), Status.WARN, "pip install"),
    ("torch", server(torch=None, unavailable={"torch": "torch is not installed"}), Status.FAIL, "torch>="),
    ("torch", laptop(torch=None, unavailable={"torch": "killed by SIGSEGV"}), Status.FAIL, "SIGSEGV"),
    ("torch_version", laptop(torch=torch_fact(version="2.5.1+cpu")), Status.FAIL, "2.5.1"),
    ("torch_version", laptop(torch=torch_fact(version="1.13")), Status.FAIL, "1.13"),
    ("bf16", server(torch=cuda_torch(4, "Tesla V100-SXM2-32GB", bf16=False)), Status.WARN, "amp_fp16"),
    ("bf16", laptop(torch=torch_fact(bf16_cpu_native=False)), Status.WARN, "slower"),
    ("bf16", laptop(torch=torch_fact(bf16=False)), Status.WARN, "fp32"),
    ("usable_cores", server(usable_cores=4, cpu_quota_cores=4.0), Status.WARN, "quota 4"),
    ("usable_cores", laptop(usable_cores=1, variables={"LOCAL_WORLD_SIZE": "2"}), Status.WARN, "2 ranks"),
    ("memory", laptop(memory_available_bytes=GIB), Status.WARN, "1.00 GiB"),
    ("memory", laptop(memory_available_bytes=GIB // 2, memory_limit_bytes=16 * GIB), Status.FAIL, "cgroup"),
    ("disk", laptop(disk=FilesystemFact(path="/x", total_bytes=10**9, free_bytes=10**9)), Status.WARN, "/x"),
    ("disk", laptop(disk=FilesystemFact(path="/x", total_bytes=10**9, free_bytes=10**6)), Status.FAIL, "-o DIR"),
    ("shared_memory", laptop(shared_memory=FilesystemFact(path="/dev/shm", total_bytes=64 * 2**20,
     free_bytes=64 * 2**20)), Status.WARN, "--ipc=host"),
    ("open_files", laptop(limits=LimitsFact(open_files_soft=1024, open_files_hard=1048576,
     locked_memory_bytes=None)), Status.WARN, "ulimit -n 65536"),
    ("open_files", laptop(limits=LimitsFact(open_files_soft=1024, open_files_hard=1024,
     locked_memory_bytes=None)), Status.WARN, "hard limit"),
    ("batch_scheduling", laptop(batch_scheduling=False), Status.WARN, "seccomp"),
    ("gpu_visibility", server(torch=torch_fact()), Status.FAIL, "CPU build"),
    ("gpu_visibility", server(torch=cuda_torch(0)), Status.FAIL, "sees none"),
    ("gpu_visibility", server(torch=cuda_torch(0), variables={"CUDA_VISIBLE_DEVICES": ""}), Status.WARN, "hides all 4"),
    ("gpu_visibility", server(torch=cuda_torch(2), variables={"CUDA_VISIBLE_DEVICES": "0,1"}), Status.WARN, "2 of 4"),
    ("gpu_visibility", server(torch=cuda_torch(2)), Status.WARN, "nvidia-smi -L"),
    ("gpu_visibility", server(torch=cuda_torch(0, cuda_error="driver too old")), Status.FAIL, "driver too old"),
    ("gpu_models", server(torch=cuda_torch(2, device_names=("NVIDIA A10", "NVIDIA L4"))), Status.WARN, "mixed"),
    ("gpu_peak", server(torch=cuda_torch(1, "NVIDIA GeForce RTX 4090 Laptop GPU")), Status.WARN, "rtx-4090"),
    ("gpu_in_use", server(gpus=(gpu(0), gpu(1, memory_used_bytes=20 * GIB))), Status.WARN, "GPU 1: 20.0 GiB"),
    ("gpu_power", server(gpus=(gpu(0, power_limit_w=400.0),)), Status.WARN, "400 of 700 W"),
    ("pcie_width", server(gpus=(gpu(0, pcie_width=4),)), Status.WARN, "x4 of x16"),
    ("mig", server(gpus=(gpu(0, mig=True),)), Status.WARN, "MIG"),
    ("gpu_links", server(cell="PHB"), Status.WARN, "PCIe only (PHB)"),
    ("socket_crossing", server(cell="SYS"), Status.WARN, "6 of 6"),
    ("peer_access", server(torch=cuda_torch(4, no_peer_access=((0, 1),))), Status.WARN, "1 of 6"),
    ("p2p_disabled", server(variables={"NCCL_P2P_DISABLE": "1"}), Status.WARN, "unset NCCL_P2P_DISABLE"),
    ("p2p_disabled", server(variables={"NCCL_P2P_LEVEL": "LOC"}), Status.WARN, "NCCL_P2P_LEVEL"),
    ("gloo", laptop(torch=torch_fact(gloo=False)), Status.FAIL, "gloo"),
    ("nccl", server(torch=cuda_torch(4, nccl=False)), Status.FAIL, "NCCL"),
    ("host_name", laptop(hostname_addresses=(), unavailable={"hostname_addresses": "does not resolve"}),
     Status.WARN, "/etc/hosts"),
    ("host_name", laptop(hostname_addresses=("192.0.2.9",)), Status.WARN, "not an address of this machine"),
    ("host_name", laptop(variables={"SLURM_NNODES": "2"}), Status.WARN, "GLOO_SOCKET_IFNAME"),
    ("socket_interface", laptop(variables={"GLOO_SOCKET_IFNAME": "ib0"}), Status.FAIL, "eth0"),
    ("socket_interface", laptop(variables={"GLOO_SOCKET_IFNAME": "eth"}), Status.FAIL, "eth0"),
    ("socket_interface", server(variables={"NCCL_SOCKET_IFNAME": "mlx5"}), Status.FAIL, "eth0"),
    ("nic_speed", laptop(nics=(NicFact(name="eth0", kind="ethernet", speed_bits_per_s=10**9, up=True),)),
     Status.WARN, "125 MB/s"),
    ("rdma", server(variables={"NCCL_IB_DISABLE": "1"}), Status.WARN, "unset NCCL_IB_DISABLE"),
    ("rdma", server(nics=(NIC_DOWN,)), Status.WARN, "none of mlx5_0"),
    ("locked_memory", server(limits=LimitsFact(open_files_soft=1, open_files_hard=1, locked_memory_bytes=8 * 2**20)),
     Status.WARN, "memlock"),
    ("debug_variables", laptop(variables={"NCCL_DEBUG": "INFO"}), Status.WARN, "unset NCCL_DEBUG"),
    ("debug_variables", laptop(variables={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}), Status.WARN, "DETAIL"),
    ("debug_variables", laptop(variables={"CUDA_LAUNCH_BLOCKING": "1"}), Status.WARN, "CUDA_LAUNCH_BLOCKING"),
    ("debug_variables", laptop(variables={"NCCL_ALGO": "Ring"}), Status.WARN, "NCCL_ALGO=Ring"),
    ("threads", server(variables={"OMP_NUM_THREADS": "64"}), Status.WARN, "OMP_NUM_THREADS=16"),
    ("threads", server(variables={}, torch=cuda_torch(4, intra_op_threads=64)), Status.WARN, "256 on 64 cores"),
    ("threads", laptop(usable_cores=2, torch=torch_fact(intra_op_threads=64)), Status.WARN, "does not see the limit"),
    ("threads", laptop(variables={"OMP_NUM_THREADS": "many"}), Status.WARN, "many"),
    ("stale_world", laptop(variables={"RANK": "0", "WORLD_SIZE": "8"}), Status.WARN, "wait for 7 other ranks"),
    ("stale_world", laptop(variables={"RANK": "0"}), Status.FAIL, "WORLD_SIZE is missing"),
    ("stale_world", laptop(variables={"RANK": "4", "WORLD_SIZE": "4"}), Status.FAIL, "does not exist"),
    ("stale_world", laptop(variables={"RANK": "x", "WORLD_SIZE": "4"}), Status.FAIL, "RANK"),
    ("local_rank", server(variables={"LOCAL_RANK": "4", "LOCAL_WORLD_SIZE": "4"}), Status.FAIL, "LOCAL_RANK=4"),
    ("local_rank", server(variables={"LOCAL_WORLD_SIZE": "8"}), Status.FAIL, "--nproc-per-node=4"),
    ("master_address", laptop(variables={"MASTER_PORT": "99999"}), Status.FAIL, "99999"),
    ("master_address", laptop(variables={"MASTER_ADDR": "localhost", "SLURM_NNODES": "2"}), Status.FAIL, "scontrol"),
    ("slurm_tasks", laptop(scheduler="slurm", variables=SLURM | {"SLURM_NTASKS_PER_NODE": "4"}), Status.WARN, "4 x 4"),
    ("slurm_tasks", laptop(scheduler="slurm", variables={"SLURM_TASKS_PER_NODE": "1,8(x3)"}), Status.WARN, "8 x 8"),
    ("slurm_tasks", laptop(scheduler="slurm", usable_cores=1, variables={"SLURM_TASKS_PER_NODE": "1"}),
     Status.WARN, "--cpus-per-task"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "record", "status", "said"), FIRING, ids=[f"{row[0]}: {row[3]}" for row in FIRING])
def test_what_is_wrong_is_named_with_a_one_line_fix(
    key: str, record: EnvironmentRecord, status: Status, said: str
) -> None:
    found = outcome(key, record)
    assert found.status is status
    assert found.fix
    assert "\n" not in found.message + found.fix
    assert said in f"{found.message} {found.fix}"


def test_every_check_has_a_case_that_fires() -> None:
    assert {row[0] for row in FIRING} == set(REGISTRY.names())


QUIET: list[tuple[str, EnvironmentRecord, Status, str]] = [
    ("torch", laptop(torch=None, unavailable={"torch": "not asked for"}), Status.SKIP, "not checked"),
    ("torch_version", laptop(torch=torch_fact(version="2.6.0")), Status.PASS, "2.6.0"),
    ("torch_version", laptop(torch=torch_fact(version="2.10.0a0+git1234")), Status.PASS, "2.10"),
    ("usable_cores", server(usable_cores=8), Status.PASS, "8 of 64"),
    ("gpu_visibility", server(torch=cuda_torch(2), scheduler="slurm"), Status.PASS, "slurm granted"),
    ("gpu_visibility", laptop(torch=cuda_torch(2, "AMD Instinct MI300X")), Status.PASS, "2 GPUs"),
    ("gpu_visibility", laptop(torch=cuda_torch(0, cuda_error="no driver")), Status.SKIP, "no NVIDIA driver library"),
    ("gpu_in_use", server(gpus=(gpu(0, memory_used_bytes=2 * GIB),)), Status.PASS, "free"),
    ("gpu_in_use", server(gpus=(gpu(0, memory_bytes=None, memory_used_bytes=None),)), Status.SKIP, "does not report it"),
    ("gpu_power", server(gpus=(gpu(0, power_limit_w=None),)), Status.SKIP, "does not report it"),
    ("gpu_links", server(count=1), Status.SKIP, "one GPU"),
    ("gpu_links", server(count=2), Status.PASS, "unknown"),
    ("gpu_links", server(count=8), Status.PASS, "through NVSwitch"),
    ("gpu_links", server(topology=None, unavailable={"topology": "did not answer"}), Status.SKIP, "did not answer"),
    ("gpu_links", server(topology="garbage"), Status.SKIP, "no link matrix"),
    ("p2p_disabled", server(variables={"NCCL_P2P_DISABLE": "0"}), Status.PASS, "no variable"),
    ("host_name", laptop(variables={"SLURM_NNODES": "2", "GLOO_SOCKET_IFNAME": "eth0"}), Status.PASS, "127.0.1.1"),
    ("socket_interface", laptop(variables={"GLOO_SOCKET_IFNAME": "eth0"}), Status.PASS, "eth0"),
    ("socket_interface", laptop(variables={"NCCL_SOCKET_IFNAME": "eth"}), Status.PASS, "eth"),
    ("nic_speed", laptop(nics=(NicFact(name="eth0", kind="ethernet", speed_bits_per_s=None, up=True),)),
     Status.SKIP, "virtual machine"),
    ("debug_variables", laptop(variables={"NCCL_DEBUG": "WARN"}), Status.PASS, "no debugging"),
    ("threads", server(variables={"OMP_NUM_THREADS": "16"}), Status.PASS, "fits 64 cores"),
    ("stale_world", laptop(variables={"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}),
     Status.PASS, "rank 1 of 2"),
    ("local_rank", server(variables={"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}), Status.PASS, "4 GPUs"),
    ("local_rank", laptop(variables={"LOCAL_RANK": "3"}), Status.SKIP, "no GPU"),
    ("master_address", laptop(variables={"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}), Status.PASS, "node1"),
    ("slurm_tasks", laptop(scheduler="slurm", variables=SLURM), Status.PASS, "16 cores"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "record", "status", "said"), QUIET, ids=[f"{row[0]}: {row[3]}" for row in QUIET])
def test_what_is_in_order_or_not_there_is_no_problem(
    key: str, record: EnvironmentRecord, status: Status, said: str
) -> None:
    found = outcome(key, record)
    assert found.status is status
    assert said in found.message


def matrix(rows: Mapping[str, str]) -> str:
    lines = ["\t" + "\t".join(rows) + "\tCPU Affinity\tNUMA Affinity"]
    lines += [f"{name}\t" + "\t".join(row.split()) + "\t0-7\t0" for name, row in rows.items()]
    return "\n".join(lines) + "\n"


def test_nvlink_islands_are_named() -> None:
    rows = {"GPU0": "X NV12 SYS SYS", "GPU1": "NV12 X SYS SYS", "GPU2": "SYS SYS X NV12", "GPU3": "SYS SYS NV12 X"}
    found = outcome("gpu_links", server(topology=matrix(rows)))
    assert found.status is Status.WARN
    assert "GPU0+GPU1, GPU2+GPU3" in found.message


def test_a_cube_mesh_is_fine() -> None:
    rows = {"GPU0": "X NV1 SYS NV2", "GPU1": "NV1 X NV2 SYS", "GPU2": "SYS NV2 X NV1", "GPU3": "NV2 SYS NV1 X"}
    assert outcome("gpu_links", server(topology=matrix(rows))).status is Status.PASS


def test_a_switched_gpu_with_dead_nvlinks_is_reported_and_an_uneven_mesh_is_not() -> None:
    dead = {"GPU0": "X NV17 NV17", "GPU1": "NV17 X NV18", "GPU2": "NV17 NV18 X"}
    found = outcome("gpu_links", server(count=3, topology=matrix(dead)))
    assert found.status is Status.WARN
    assert "17 to 18" in found.message
    names = "Tesla V100-SXM2-16GB"
    mesh = {"GPU0": "X NV1 NV2", "GPU1": "NV1 X NV2", "GPU2": "NV2 NV2 X"}
    uneven = server(count=3, topology=matrix(mesh), gpus=tuple(gpu(i, names) for i in range(3)))
    assert outcome("gpu_links", uneven).status is Status.PASS


def test_a_truncated_matrix_is_not_judged() -> None:
    rows = server(count=4).topology.splitlines()
    found = outcome("gpu_links", server(topology="\n".join(rows[:3])))
    assert found.status is Status.SKIP
    assert "cut off" in found.message


def test_nccls_interface_list_has_prefixes_exact_names_and_exclusions() -> None:
    nics = tuple(
        NicFact(name=name, kind="ethernet", speed_bits_per_s=None, up=name != "eth9")
        for name in ("eth0", "eth10", "eth9", "docker0", "ib0")
    )
    assert nccl_choice("eth", nics) == ("eth0", "eth10")
    assert nccl_choice("=eth0,ib0", nics) == ("eth0", "ib0")
    assert nccl_choice("^docker,lo", nics) == ("eth0", "eth10", "ib0")
    assert nccl_choice("^=eth0", nics) == ("eth10", "docker0", "ib0")


def test_verdicts_come_in_section_order_and_the_tally_counts_them_all() -> None:
    verdicts = judge(laptop())
    places = [SECTIONS.index(verdict.section) for verdict in verdicts]
    assert places == sorted(places)
    assert verdicts[0].key == "torch"
    assert sum(tally(verdicts).values()) == len(verdicts) == len(REGISTRY.names())
    assert list(tally(verdicts)) == ["pass", "warn", "fail", "skip"]


def text_of(record: EnvironmentRecord) -> dict[str, Any]:
    return {s.title: {line.label: (line.text, line.recorded) for line in s.lines} for s in overview(record)}


def test_the_overview_says_why_a_fact_is_missing() -> None:
    shown = text_of(laptop(torch=None, unavailable=laptop().unavailable | {"torch": "killed by SIGSEGV"}))
    assert shown["environment"]["torch"] == ("killed by SIGSEGV", False)
    assert shown["GPUs"]["driver"] == ("no NVIDIA driver library", False)
    assert shown["links"]["topology"] == ("nvidia-smi is not on PATH", False)


def test_the_overview_groups_equal_gpus_and_reads_the_links() -> None:
    shown = text_of(server(count=4))
    assert "GPU 0-3" in shown["GPUs"]
    assert shown["links"]["NV18"][0].startswith("6 of 6 pairs")
    assert shown["links"]["NVSwitch"][0] == "yes"
    mixed = text_of(server(gpus=(gpu(0), gpu(1, power_limit_w=300.0), gpu(2), gpu(3))))
    assert [label for label in mixed["GPUs"] if label.startswith("GPU")] == ["GPU 0", "GPU 1", "GPU 2-3"]


def test_a_gpu_that_cannot_be_opened_is_shown_with_its_reason() -> None:
    record = dataclasses.replace(server(), unavailable={"gpu 4": "GPU is lost"})
    assert text_of(record)["GPUs"]["GPU 4"] == ("GPU is lost", False)


def test_the_reference_page_lists_every_check_and_every_probe() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "doctor.md").read_text(encoding="utf-8")
    assert [key for key in REGISTRY.names() if f"| {REGISTRY.load(key).title} |" not in page] == []
    assert [name for name in PROBES.names() if f"| `{name}` |" not in page] == []
