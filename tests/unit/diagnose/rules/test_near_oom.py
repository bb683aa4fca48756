from __future__ import annotations

from pathlib import Path

from tests.bench_evidence import bench, environment, failed, made
from tests.borders import H100
from tests.evidence import evidence, run
from tests.memory_pickles import MIB, alloc, dump, event, live, segment

from stepscope.diagnose.rules.near_oom import RULE
from stepscope.records.environment import GpuFact
from stepscope.records.finding import Skipped
from stepscope.results.open import load_evidence

GIB = 2**30
GPU = GpuFact(index=0, name="a GPU", uuid=None, memory_bytes=16 * GIB, compute_capability="8.0", driver_version=None)
CUDA = {"device": "cuda", "backend": "nccl"}


def test_a_peak_near_the_capacity_fires_with_remedies_by_cost() -> None:
    (found,) = RULE.check(evidence(run("a", ranks=4, peak_memory_bytes=78 * GIB, **H100)))
    assert found.title == "toy: a on 4 ranks: the peak takes 99% of the device's memory"
    assert found.severity == "warning"
    assert found.confidence.startswith("likely")
    costs = [advice.text for advice in found.advice]
    assert costs[0].startswith("no cost")
    assert "(8 instead of 16)" in costs[1]
    assert "from 12 to 3.0 bytes a parameter" in costs[3]
    assert costs[-1].startswith("highest cost")


def test_remedies_that_do_not_apply_are_left_out() -> None:
    known = H100 | {"precision": "bf16", "micro_batch": 1}
    (found,) = RULE.check(evidence(run("a", ranks=1, peak_memory_bytes=78 * GIB, **known)))
    texts = " ".join(advice.text for advice in found.advice)
    assert "micro-batch" not in texts
    assert "bf16" not in texts
    assert "shard" not in texts


def test_a_run_that_failed_names_what_fits() -> None:
    failed = run("b", status="oom", error="CUDA out of memory. Tried to allocate 2.00 GiB", **H100)
    fits = run("a", peak_memory_bytes=40_000_000_000, **H100)
    (found,) = RULE.check(evidence(failed, fits))
    assert found.title == "out of GPU memory: 1 run of toy"
    assert found.subject == "toy: b on 1 ranks"
    assert found.severity == "problem"
    assert found.evidence[0].startswith("b on 1 ranks, micro-batch 16: CUDA out of memory")
    assert found.evidence[2] == "a on 1 ranks, micro-batch 16 fits, peak 37.3 GiB"


def test_a_failed_request_in_a_snapshot_names_who_held_the_memory(tmp_path: Path) -> None:
    where = "/home/me/proj/model.py:12 attention"
    trace = [
        event("segment_alloc", 60 * MIB),
        alloc(1, 60 * MIB, where),
        event("oom", 50 * MIB, device_free=20 * MIB),
    ]
    path = dump(tmp_path / "s.pickle", [segment(live(60 * MIB, at=1, where=where))], trace)
    (found,) = RULE.check(load_evidence([path]))
    assert found.title == "1 request failed: 50.0 MiB wanted with 20.0 MiB left in the driver"
    assert "60.0 MiB of unknown held at proj/model.py:12 attention" in found.evidence


def test_remedies_for_what_holds_next_to_nothing_are_left_out(tmp_path: Path) -> None:
    """Half of the memory is the optimizer's: a smaller batch would not make room."""
    script = "/home/me/train.py:9 <module>"
    parameter = ("/home/me/model.py:2 __init__", script)
    state = ("/x/torch/optim/adam.py:3 _init_group", script)
    held = [live(300 * MIB, at=1, where=parameter), live(600 * MIB, at=2, where=state)]
    trace = [alloc(1, 300 * MIB, parameter), alloc(2, 600 * MIB, state), event("oom", 50 * MIB, device_free=MIB)]
    (found,) = RULE.check(load_evidence([dump(tmp_path / "s.pickle", [segment(*held)], trace)]))
    assert "at the peak: optimizer 600 MiB (67%), parameters 300 MiB (33%)" in found.evidence
    texts = " ".join(advice.text for advice in found.advice)
    assert "ZeRO-1" in texts
    assert "micro-batch" not in texts
    assert "recompute" not in texts


def test_ranks_that_fail_together_are_one_finding(tmp_path: Path) -> None:
    for rank, size in enumerate((40, 60)):
        trace = [event("oom", 50 * MIB, device_free=MIB)]
        dump(tmp_path / f"oom-rank-{rank}.pickle", [segment(live(size * MIB))], trace)
    (found,) = RULE.check(load_evidence([tmp_path]))
    assert found.subject == "oom-rank-1.pickle, device 0"
    assert "out of memory too: oom-rank-0.pickle, device 0" in found.evidence


def test_a_peak_that_ran_is_never_more_than_the_device() -> None:
    """78 GiB are 84 GB: more than the 80 that the device is sold with. 82 GiB ran on another one than the table's."""
    (found,) = RULE.check(evidence(run("a", peak_memory_bytes=78 * GIB, **H100)))
    assert "the peak takes 99%" in found.title
    assert isinstance(RULE.check(evidence(run("a", peak_memory_bytes=82 * GIB, **H100))), Skipped)


def test_a_cell_out_of_memory_gets_remedies_in_order_of_cost() -> None:
    evidence = bench(
        made("fits", micro_batch=32, global_batch=64, known={"peak_memory_bytes": 9 * GIB}, **CUDA),
        failed("out", "oom", "rank 0: CUDA out of memory", micro_batch=64, global_batch=128, **CUDA),
        environment=environment(gpus=(GPU,)),
    )
    (found,) = RULE.check(evidence)
    assert found.title == "out of GPU memory: 1 run of mlp small on synthetic, fp32"
    text = " ".join(found.evidence)
    assert "micro-batch 32 fits, peak 9.00 GiB" in text
    assert "alone: " in text
    assert "of 16.0 GiB a rank" in text
    advice = [a.text for a in found.advice]
    assert advice[0].startswith("low cost: halve the micro-batch (32 instead of 64) and double the accumulation")
    assert [
        word in text
        for word, text in zip(("half", "bf16", "ZeRO-1", "recompute", "FSDP", "device"), advice, strict=True)
    ]
    assert found.advice[0].command == "stepscope bench MATRIX.yaml --set base.accumulation=2"


def test_a_state_that_does_not_fit_is_not_told_to_shrink_its_batch() -> None:
    small = GpuFact(index=0, name="a GPU", uuid=None, memory_bytes=2**20, compute_capability=None, driver_version=None)
    evidence = bench(failed("out", "oom", "rank 0: CUDA out of memory", **CUDA), environment=environment(gpus=(small,)))
    (found,) = RULE.check(evidence)
    assert not any("micro-batch" in a.text or "recompute" in a.text for a in found.advice)


def test_cpu_ranks_of_one_host_share_its_memory() -> None:
    cell = made("c", known={"peak_memory_bytes": 8 * GIB})  # twice that on 16 GiB
    (found,) = RULE.check(bench(cell, environment=environment()))
    assert "for all ranks of the host" in found.evidence[0]
    assert "100%" in found.title


def test_without_a_capacity_nothing_is_said() -> None:
    assert isinstance(RULE.check(bench(made("c", known={"peak_memory_bytes": GIB}))), Skipped)


def test_runs_of_one_model_that_ran_out_are_one_finding() -> None:
    runs = [run(f"b{size}", status="oom", **H100 | {"micro_batch": size}) for size in (64, 16, 32)]
    (found,) = RULE.check(evidence(*runs))
    assert found.title == "out of GPU memory: 3 runs of toy"
    assert found.evidence[0].startswith("b16 on 1 ranks, micro-batch 16: ")
    assert "3 runs of this model ran out of memory; this run needs the least" in found.evidence
