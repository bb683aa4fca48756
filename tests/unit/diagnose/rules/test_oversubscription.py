from __future__ import annotations

from tests.bench_evidence import bench, environment, made

from stepscope.diagnose.rules.oversubscription import RULE
from stepscope.records.environment import TorchFact
from stepscope.records.finding import Quiet


def torch(devices: int) -> TorchFact:
    return TorchFact(
        version="2.13.0", cuda_version="13.0", nccl_version=None, hip_version=None, gloo=True, nccl=True,
        cuda_available=True, device_count=devices, device_names=("a GPU",) * devices,
        device_memory_bytes=(2**34,) * devices, bf16=True,
    )  # fmt: skip


def test_more_threads_than_cores_is_counted_and_told_what_fits() -> None:
    cell = made("c", world_size=4, summary={"num_threads": 8})
    (found,) = RULE.check(bench(cell, environment=environment(usable_cores=8, logical_cores=64)))
    assert found.title == "32 threads share 8 cores: step times depend on the scheduler"
    assert found.severity == "problem"
    assert "affinity or a cgroup leaves 8" in " ".join(found.evidence)
    assert found.advice[0].text.endswith("OMP_NUM_THREADS=2")
    assert found.advice[0].command == "stepscope bench MATRIX.yaml --set launch.threads_per_rank=2"


def test_loader_workers_count() -> None:
    cell = made("c", world_size=2, num_workers=4, summary={"num_threads": 1})
    (found,) = RULE.check(bench(cell, environment=environment()))
    assert found.severity == "warning"
    assert "+ 8 loader workers = 10 on 8 usable cores" in found.evidence[0]


def test_more_ranks_than_gpus_on_a_host() -> None:
    cell = made("c", world_size=4, device="cuda", backend="nccl")
    (found,) = RULE.check(bench(cell, environment=environment(torch=torch(2))))
    assert found.title == "4 ranks of one host share 2 GPUs"
    assert isinstance(RULE.check(bench(cell, environment=environment(torch=torch(4)))), Quiet)


def test_gloo_threads_under_the_ordinary_scheduler() -> None:
    cell = made("c", world_size=4, summary={"scheduler_policy": "SCHED_OTHER"})
    (found,) = RULE.check(bench(cell, environment=environment()))
    assert "gloo's threads preempt each other: 16 on 8 cores" in found.title
    batch = made("c", world_size=4, summary={"scheduler_policy": "SCHED_BATCH"})
    assert isinstance(RULE.check(bench(batch, environment=environment())), Quiet)


def test_cells_of_a_contended_machine_come_first_and_are_in_doubt() -> None:
    """Ranks with a core for each thread wait for none: something else runs there. More threads than cores wait anyway."""
    busy = made("busy", world_size=2, summary={"run_delay_fraction": 0.6})
    idle = made("idle", world_size=2, summary={"run_delay_fraction": 0.01})
    (found,) = RULE.check(bench(busy, idle, environment=environment()))
    assert (found.priority, found.runs) == ("wrong", tuple(found.casts_doubt))
    assert len(found.runs) == 1
    crowded = made("c", world_size=16, summary={"run_delay_fraction": 0.6})
    (counted,) = RULE.check(bench(crowded, environment=environment()))
    assert "threads share 8 cores" in counted.title
