from __future__ import annotations

import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest
from tests.machines import GIB, reason, torch_fact

from stepscope.core.errors import Unavailable
from stepscope.machine.cgroups import CgroupLimits, cgroup_limits
from stepscope.machine.collect import assemble, collect
from stepscope.machine.probes import REGISTRY, Facts, ProbeContext, gpus, host, processors, torch
from stepscope.records.codec import decode, encode
from stepscope.records.environment import EnvironmentRecord


def facts(result: Facts | Unavailable) -> dict[str, Any]:
    assert not isinstance(result, Unavailable), result
    return {name: value for name, value in result.items() if not isinstance(value, Unavailable)}


def limits_of(cores: float | None, memory: int | None, used: int | None) -> CgroupLimits:
    return CgroupLimits(cpu_quota_cores=cores, memory_limit_bytes=memory, memory_used_bytes=used)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


# cgroups


CGROUPS: list[tuple[str, dict[str, object], tuple[float | None, int | None, int | None]]] = [
    ("version 2 binds wherever it sits on the way up",
     {"self": "0::/job/step\n", "job/cpu.max": "250000 100000\n", "job/step/cpu.max": "max 100000\n",
      "job/memory.max": 4 * GIB, "job/memory.current": 3 * GIB, "job/memory.stat": f"anon 1\ninactive_file {GIB}\n",
      "job/step/memory.max": "max\n"}, (2.5, 4 * GIB, 2 * GIB)),
    ("version 1 is read from the controllers' own mounts",
     {"self": "9:memory:/box\n4:cpu,cpuacct:/box\n0::/\n", "cpu,cpuacct/box/cpu.cfs_quota_us": "150000\n",
      "cpu,cpuacct/box/cpu.cfs_period_us": "100000\n", "memory/box/memory.limit_in_bytes": 2 * GIB,
      "memory/box/memory.usage_in_bytes": GIB}, (1.5, 2 * GIB, GIB)),
    ("version 1 without limits",
     {"self": "9:memory:/\n4:cpu:/\n", "cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n",
      "memory/memory.limit_in_bytes": "9223372036854771712\n"}, (None, None, None)),
    ("inside a container the host's path leads to the container's own group",
     {"self": "0::/kubepods/pod1/container\n", "cpu.max": "400000 100000\n"}, (4, None, None)),
    *((f"the quota {text!r} is none", {"self": "0::/\n", "cpu.max": text}, (None, None, None))
      for text in ("", "max", "x y", "100000 0")),
    ("no cgroups", {}, (None, None, None)),
]  # fmt: skip


@pytest.mark.parametrize(("files", "limits"), [case[1:] for case in CGROUPS], ids=[case[0] for case in CGROUPS])
def test_the_limits_of_a_cgroup_are_read(
    tmp_path: Path, files: dict[str, object], limits: tuple[float | None, int | None, int | None]
) -> None:
    for name, text in files.items():
        write(tmp_path / ("proc/self/cgroup" if name == "self" else f"sys/fs/cgroup/{name}"), f"{text}")
    assert cgroup_limits(tmp_path) == limits_of(*limits)


@pytest.mark.parametrize(
    ("affinity", "logical", "quota", "expected"),
    [(None, 8, None, 8), (3, 8, None, 3), (8, 8, 2.5, 3), (2, 8, 6.0, 2), (8, 8, 0.1, 1), (4, 8, 4.0, 4)],
)
def test_usable_cores_are_the_smaller_of_affinity_and_quota(
    affinity: int | None, logical: int, quota: float | None, expected: int
) -> None:
    assert processors.usable_cores(affinity=affinity, logical=logical, quota=quota) == expected


def test_memory_is_what_the_cgroup_leaves() -> None:
    limited, full = limits_of(None, 4 * GIB, 3 * GIB), limits_of(None, GIB, 2 * GIB)
    assert processors.within_limits(64 * GIB, 60 * GIB, limited) == (4 * GIB, GIB)
    assert processors.within_limits(64 * GIB, GIB // 2, limited) == (4 * GIB, GIB // 2)
    assert processors.within_limits(2 * GIB, GIB, limited) == (2 * GIB, GIB)
    assert processors.within_limits(64 * GIB, 60 * GIB, full) == (GIB, 0)


# variables


SECRET = [
    ("NCCL_API_TOKEN", "abc"), ("SLURM_JWT", "x.y.z"), ("TORCH_PASSWORD", "hunter2"), ("CUDA_secret_thing", "x"),
    ("STEPSCOPE_KEY", "1"), ("TORCH_HOME", "s3://user:pw@bucket/x"), ("SLURM_SUBMIT_DIR", "https://me@example.org/x"),
    ("TORCH_HUB", "https://example.org/x?sig=1&X-Amz-Signature=abc"),
    ("SLURM_EXPORT_ENV", "ALL,WANDB_API_KEY=0123456789"), ("SLURM_COMMENT", "HF_TOKEN=hf_abcdefgh"),
    ("NCCL_COMMENT", "Bearer abcdefghijkl"), ("NCCL_COMMENT", "ghp_0123456789abcdef"),
]  # fmt: skip
ORDINARY = [
    ("NCCL_DEBUG", "INFO"), ("OMP_NUM_THREADS", "4"), ("MASTER_ADDR", "node1.example.org"), ("CUDA_VISIBLE_DEVICES", ""),
    ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,max_split_size_mb:128"),
    ("NCCL_IB_HCA", "=mlx5_0:1,mlx5_1:1"), ("TORCH_HOME", "https://example.org/hub"),
    ("SLURM_JOB_NODELIST", "node[01-04]"), ("LD_LIBRARY_PATH", "/usr/local/cuda/lib64:/opt/nccl/lib"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), SECRET + ORDINARY)
def test_anything_that_may_be_a_secret_is_masked_and_nothing_else(name: str, value: str) -> None:
    assert host.relevant({name: value}) == {name: "***" if (name, value) in SECRET else value}


def test_variables_that_do_not_matter_are_left_out() -> None:
    environ = dict.fromkeys(("HOME", "AWS_SECRET_ACCESS_KEY", "RANK", "WORLD_SIZE", "GLOO_SOCKET_IFNAME"), "x")
    assert list(host.relevant(environ)) == ["GLOO_SOCKET_IFNAME", "RANK", "WORLD_SIZE"]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "1"}, "slurm"),
        ({"SLURM_CONF": "/etc/slurm.conf"}, None),
        ({"PBS_JOBID": "1.pbs"}, "pbs"),
        ({"LSB_JOBID": "3"}, "lsf"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "SLURM_JOB_ID": "1"}, "slurm"),
    ],
)
def test_the_scheduler_is_told_by_its_job_variable(environ: dict[str, str], expected: str | None) -> None:
    assert facts(host.scheduler.run(ProbeContext(environ=environ)))["scheduler"] == expected


# NICs


def test_rdma_ports_are_read_with_rate_layer_and_state(tmp_path: Path) -> None:
    for folder, rate, state, layer in (
        ("mlx5_0/ports/1", "400 Gb/sec (4X NDR)", "4: ACTIVE", "InfiniBand"),
        ("mlx5_1/ports/2", "garbage", "1: DOWN", "Ethernet"),
    ):
        write(tmp_path / folder / "rate", f"{rate}\n")
        write(tmp_path / folder / "state", f"{state}\n")
        write(tmp_path / folder / "link_layer", f"{layer}\n")
    assert [(nic.name, nic.kind, nic.speed_bits_per_s, nic.up, nic.rdma) for nic in host.rdma_devices(tmp_path)] == [
        ("mlx5_0", "infiniband", 400 * 10**9, True, True),
        ("mlx5_1:2", "roce", None, False, True),
    ]


def test_interfaces_without_hardware_behind_them_are_virtual(tmp_path: Path) -> None:
    for name, kind in (("lo", "772"), ("ib0", "32"), ("docker0", "1"), ("eth0", "1")):
        write(tmp_path / name / "type", kind)
    (tmp_path / "eth0/device").mkdir()
    kinds = [host.interface_kind(tmp_path / name, name) for name in ("lo", "ib0", "docker0", "eth0")]
    assert kinds == ["loopback", "infiniband", "virtual", "ethernet"]


# child processes


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_noise_on_stdout_before_the_torch_probes_answer_does_not_matter() -> None:
    answer = (
        '{"version": "2.13.0", "cuda_version": null, "nccl_version": null, "hip_version": null, "gloo": true, '
        '"nccl": false, "cuda_available": false, "device_count": 0, "device_names": [], '
        '"device_memory_bytes": [], "bf16": true}'
    )
    found = torch.ask(python(f"print('hello'); print('''{answer}''')"), environ={}, timeout_s=30)
    assert not isinstance(found, Unavailable)
    assert found.version == "2.13.0"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys; sys.stderr.write('torch is not installed\\n'); sys.exit(3)", "torch is not installed"),
        ("import sys; sys.exit(9)", "exit code 9"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("raise RuntimeError('libcudart is missing')", "libcudart is missing"),
        ("print('hello')", "without a result"),
        ("print('{\"version\": 3}')", "not a valid TorchFact"),
        ("print('{\"version\":')", "not readable"),
    ],
)
def test_a_torch_that_is_missing_crashes_or_babbles_is_unavailable_with_the_reason(code: str, said: str) -> None:
    found = torch.ask(python(code), environ={}, timeout_s=30)
    assert said in reason(found)
    assert "\n" not in reason(found)


def test_a_torch_that_hangs_is_stopped() -> None:
    started = time.monotonic()
    assert "0.5 s" in reason(torch.ask(python("import time; time.sleep(60)"), environ={}, timeout_s=0.5))
    assert time.monotonic() - started < 20


def fake_smi(folder: Path, script: str) -> ProbeContext:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return ProbeContext(environ={"PATH": f"{folder}:/usr/bin:/bin"}, command_timeout_s=1.0)


def test_nvidia_smis_text_is_kept_as_it_is(tmp_path: Path) -> None:
    context = fake_smi(tmp_path, "printf '\\tGPU0\\tCPU Affinity\\nGPU0\\t X \\t0-3\\n'; echo \"$1 $2\"")
    assert facts(gpus.topology.run(context))["topology"] == "\tGPU0\tCPU Affinity\nGPU0\t X \t0-3\ntopo -m\n"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'NVIDIA-SMI has failed'; exit 9", "exit code 9: NVIDIA-SMI has failed"),
        ("sleep 30", "did not answer within 1 s"),
        ("exit 0", "printed nothing"),
    ],
)
def test_an_nvidia_smi_that_fails_hangs_or_is_silent_is_unavailable(tmp_path: Path, script: str, said: str) -> None:
    assert said in reason(gpus.topology.run(fake_smi(tmp_path, script)))


def test_no_nvidia_smi_is_unavailable(tmp_path: Path) -> None:
    found = gpus.topology.run(ProbeContext(environ={"PATH": str(tmp_path)}))
    assert found == Unavailable("nvidia-smi is not on PATH")


# host


def test_a_name_that_does_not_resolve_is_unavailable() -> None:
    assert "no-such-host.invalid" in reason(host.resolve("no-such-host.invalid", timeout_s=10))


def test_localhost_resolves() -> None:
    assert set(host.resolve("localhost", timeout_s=10)) & {"127.0.0.1", "::1"}  # type: ignore[arg-type]


def test_a_resolver_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.socket, "getaddrinfo", lambda *_a, **_k: time.sleep(1) or [])
    assert "slow" in reason(host.resolve("slow", timeout_s=0.05))
    time.sleep(1.2)  # let the thread end before the next test


def test_probing_sched_batch_leaves_this_process_as_it_was() -> None:
    import os

    before = os.sched_getscheduler(0)
    assert host.batch_scheduling_allowed() in (True, False)
    assert os.sched_getscheduler(0) == before


# NVML


class NvmlError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


NOT_SUPPORTED, NO_PERMISSION, NOT_LOADED, NOT_FOUND, NO_LIBRARY, LOST = 3, 4, 9, 13, 12, 15


def fake_nvml(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> types.SimpleNamespace:
    """A driver with two H100 whose functions ``changes`` replaces."""
    functions: dict[str, Any] = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: b"580.65.06",
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda _: "NVIDIA H100 80GB HBM3",
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
        "nvmlDeviceGetMemoryInfo": lambda _: types.SimpleNamespace(total=80 * GIB, used=GIB),
        "nvmlDeviceGetCudaComputeCapability": lambda _: (9, 0),
        "nvmlDeviceGetMigMode": lambda _: [0, 0],
        "nvmlDeviceGetMaxPcieLinkGeneration": lambda _: 5,
        "nvmlDeviceGetCurrPcieLinkWidth": lambda _: 16,
        "nvmlDeviceGetMaxPcieLinkWidth": lambda _: 16,
        "nvmlDeviceGetEnforcedPowerLimit": lambda _: 700_000,
        "nvmlDeviceGetPowerManagementDefaultLimit": lambda _: 700_000,
    }
    codes = {
        "NVML_ERROR_NOT_SUPPORTED": NOT_SUPPORTED, "NVML_ERROR_NO_PERMISSION": NO_PERMISSION,
        "NVML_ERROR_DRIVER_NOT_LOADED": NOT_LOADED, "NVML_ERROR_FUNCTION_NOT_FOUND": NOT_FOUND,
        "NVML_ERROR_LIBRARY_NOT_FOUND": NO_LIBRARY,
    }  # fmt: skip
    module = types.SimpleNamespace(NVMLError=NvmlError, **codes, **(functions | changes))
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


def fails(code: int) -> Any:
    def function(*_: Any) -> Any:
        raise NvmlError(code)

    return function


def test_gpus_are_read_from_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml(monkeypatch)
    first, second = facts(gpus.gpus.run(ProbeContext(environ={})))["gpus"]
    assert (first.index, second.index) == (0, 1)
    assert first.name == "NVIDIA H100 80GB HBM3"
    assert (first.memory_bytes, first.memory_used_bytes) == (80 * GIB, GIB)
    assert (first.driver_version, first.compute_capability) == ("580.65.06", "9.0")
    assert (first.power_limit_w, first.pcie_width, first.mig) == (700.0, 16, False)


def test_what_a_gpu_does_not_support_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = ("MemoryInfo", "MigMode", "CurrPcieLinkWidth", "EnforcedPowerLimit")
    fake_nvml(monkeypatch, **{f"nvmlDeviceGet{name}": fails(NOT_SUPPORTED) for name in absent})
    found = facts(gpus.gpus.run(ProbeContext(environ={})))["gpus"][0]
    unknown = (found.memory_bytes, found.memory_used_bytes, found.mig, found.pcie_width, found.power_limit_w)
    assert unknown == (None,) * 5


def test_a_lost_gpu_is_named_and_the_others_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def handle(index: int) -> int:
        if index == 1:
            raise NvmlError(LOST)
        return index

    fake_nvml(monkeypatch, nvmlDeviceGetHandleByIndex=handle)
    result = gpus.gpus.run(ProbeContext(environ={}))
    assert not isinstance(result, Unavailable)
    assert [found.index for found in result["gpus"]] == [0]
    assert "error 15" in result["gpu 1"].reason


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (NO_LIBRARY, "no NVIDIA driver library"),
        (NOT_LOADED, "kernel module"),
        (NO_PERMISSION, "/dev/nvidia"),
        (99, "error 99"),
    ],
)
def test_a_driver_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch, code: int, said: str) -> None:
    fake_nvml(monkeypatch, nvmlInit=fails(code))
    assert said in reason(gpus.gpus.run(ProbeContext(environ={})))


def test_a_driver_that_fails_later_is_shut_down_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []
    fake_nvml(monkeypatch, nvmlDeviceGetCount=fails(LOST), nvmlShutdown=lambda: closed.append(True))
    assert "error 15" in reason(gpus.gpus.run(ProbeContext(environ={})))
    assert closed == [True]


def test_a_missing_nvml_package_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "nvidia-ml-py" in reason(gpus.gpus.run(ProbeContext(environ={})))


# what torch said last time is taken again only while nothing that decides it has changed


def test_a_cpu_builds_answer_is_remembered_until_something_changes(tmp_path: Path) -> None:
    environ, answer = {"XDG_CACHE_HOME": str(tmp_path)}, torch_fact()
    assert torch.recall(environ) is None
    torch.remember(answer, environ)
    assert torch.recall(environ) == answer
    assert torch.recall({**environ, "OMP_NUM_THREADS": "1"}) is None
    (path,) = tmp_path.glob("stepscope/torch/*.json")
    path.write_text("{")
    assert torch.recall(environ) is None


@pytest.mark.parametrize("change", [{"cuda_version": "12.8"}, {"hip_version": "6.2"}, {"device_count": 1}])
def test_a_build_for_gpus_is_asked_every_time(tmp_path: Path, change: dict[str, object]) -> None:
    torch.remember(torch_fact(**change), {"XDG_CACHE_HOME": str(tmp_path)})
    assert torch.recall({"XDG_CACHE_HOME": str(tmp_path)}) is None


def test_a_cache_that_cannot_be_written_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    environ = {"XDG_CACHE_HOME": str(tmp_path / "file")}
    torch.remember(torch_fact(), environ)
    assert torch.recall(environ) is None


# all together


def test_every_probe_is_listed_and_has_a_summary() -> None:
    assert REGISTRY.names() == (
        "cpu", "gpus", "host", "memory", "nics", "packages", "scheduler", "topology", "torch", "variables",
    )  # fmt: skip
    assert all(REGISTRY.load(name).summary for name in REGISTRY.names())


def test_this_machines_record_survives_the_codec(tmp_path: Path) -> None:
    record = collect(with_torch=False, environ={"OMP_NUM_THREADS": "3", "PATH": ""}, cwd=tmp_path)
    assert decode(encode(record), EnvironmentRecord, source="memory") == record
    assert record.unavailable["torch"] == "not asked for"
    assert record.variables == {"OMP_NUM_THREADS": "3"}
    assert 1 <= record.usable_cores <= record.logical_cores
    assert 0 < record.memory_available_bytes <= record.memory_bytes
    assert record.packages["stepscope"]
    assert record.disk is not None
    assert record.disk.path == str(tmp_path)


def test_a_foreign_probes_facts_are_kept_apart() -> None:
    results: dict[str, Facts | Unavailable] = {
        name: probe.run(ProbeContext(environ={}))
        for name in ("host", "cpu", "memory", "packages", "variables", "scheduler")
        for probe in [REGISTRY.load(name)]
    }
    results["fans"] = {"rpm": 1200, "fan 2": Unavailable("stuck")}
    results["tpu"] = Unavailable("no TPU")
    record = assemble(results)
    assert record.extra == {"fans": {"rpm": 1200}}
    assert record.unavailable["fan 2"] == "stuck"
    assert record.unavailable["tpu"] == "no TPU"
    assert decode(encode(record), EnvironmentRecord, source="memory") == record
