from __future__ import annotations

import pytest
from tests.bench_evidence import bench, environment, failed, made

from stepscope.diagnose.rules.memory_peak import RULE
from stepscope.records.environment import GpuFact
from stepscope.records.finding import Quiet, Skipped

GIB = 2**30
GPU = GpuFact(index=0, name="a GPU", uuid=None, memory_bytes=16 * GIB, compute_capability="8.0", driver_version=None)
CUDA = {"device": "cuda", "backend": "nccl"}


def test_a_cell_out_of_memory_gets_remedies_in_order_of_cost() -> None:
    evidence = bench(
        made("fits", micro_batch=32, global_batch=64, known={"peak_memory_bytes": 9 * GIB}, **CUDA),
        failed("out", "oom", "rank 0: CUDA out of memory", micro_batch=64, global_batch=128, **CUDA),
        environment=environment(gpus=(GPU,)),
    )
    (found,) = RULE.check(evidence)
    assert found.title == "out of GPU memory: 1 cell of mlp small on synthetic, fp32"
    text = " ".join(found.evidence)
    assert "micro-batch 32 fits (9.00 GiB at the peak)" in text
    assert "alone: " in text
    assert "of 16.0 GiB a rank" in text
    advice = [a.text for a in found.advice]
    assert advice[0].startswith("halve the micro-batch (32) and double the accumulation")
    assert [word in text for word, text in zip(("half", "BF16", "recompute", "shard", "device"), advice, strict=True)]
    assert found.advice[0].command == "stepscope bench MATRIX.yaml --set base.accumulation=2"


def test_a_state_that_does_not_fit_is_not_told_to_shrink_its_batch() -> None:
    small = GpuFact(index=0, name="a GPU", uuid=None, memory_bytes=2**20, compute_capability=None, driver_version=None)
    evidence = bench(failed("out", "oom", "rank 0: CUDA out of memory", **CUDA), environment=environment(gpus=(small,)))
    (found,) = RULE.check(evidence)
    assert not any("micro-batch" in a.text or "recompute" in a.text for a in found.advice)


def test_a_low_peak_is_quiet() -> None:
    cell = made("c", known={"peak_memory_bytes": 4 * GIB}, **CUDA)
    outcome = RULE.check(bench(cell, environment=environment(gpus=(GPU,))))
    assert isinstance(outcome, Quiet)
    assert "25% of the memory" in outcome.looked_at


@pytest.mark.parametrize(("peak_gib", "fires"), [(14.3, False), (14.5, True)])
def test_nine_tenths_of_the_device_decide(peak_gib: float, fires: bool) -> None:
    cell = made("c", known={"peak_memory_bytes": int(peak_gib * GIB)}, **CUDA)
    outcome = RULE.check(bench(cell, environment=environment(gpus=(GPU,))))
    assert isinstance(outcome, tuple) is fires


def test_cpu_ranks_of_one_host_share_its_memory() -> None:
    cell = made("c", known={"peak_memory_bytes": 8 * GIB})  # twice that on 16 GiB
    (found,) = RULE.check(bench(cell, environment=environment()))
    assert "for all ranks of the host" in found.evidence[0]
    assert "100%" in found.title


def test_without_a_capacity_nothing_is_said() -> None:
    assert isinstance(RULE.check(bench(made("c", known={"peak_memory_bytes": GIB}))), Skipped)
