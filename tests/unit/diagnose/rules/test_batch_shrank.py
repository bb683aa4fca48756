from __future__ import annotations

from typing import Any

import pytest
from tests.bench_evidence import Made, bench, made

from stepscope.diagnose.rules.batch_shrank import RULE
from stepscope.records import mesh
from stepscope.records.finding import Quiet, Skipped

GPT = {"workload": "gpt", "model": {"num_layers": 2, "d_model": 32, "n_heads": 4, "max_seq_len": 8, "vocab_size": 64}}


def cell(strategy: str, world: int, shape: dict[str, int] | None = None, **spec: Any) -> Made:
    micro, accumulation = spec.pop("micro_batch", 4), spec.pop("accumulation", 1)
    batch = micro * mesh.size(shape or {}, world, "dp") * accumulation
    return made(
        f"{strategy}{world}{shape}{spec}{micro}x{accumulation}", strategy=strategy, world_size=world, mesh=shape or {},
        micro_batch=micro, accumulation=accumulation, global_batch=batch, **{"batch_rule": "micro_batch"} | GPT | spec,
    )  # fmt: skip


def test_tensor_parallel_ranks_beside_data_parallel_ones_fire() -> None:
    (found,) = RULE.check(bench(cell("ddp", 4), cell("tensor_parallel", 4, {"dp": 2, "tp": 2})))
    assert found.title == "dp2xtp2 shrinks the global batch: 8, against 16 with ddp on 4 ranks"
    assert found.evidence[0] == "2 ranks of dp2xtp2 share their samples: micro-batch 4 x 2 data shards x accumulation 1"
    assert found.advice[0].command is not None
    assert found.advice[0].command.endswith("--set base.accumulation=2")


@pytest.mark.parametrize(("ranks", "fires"), [(1, False), (2, True)])
def test_more_ranks_with_a_smaller_batch_fire_and_an_equal_one_does_not(ranks: int, fires: bool) -> None:
    other = cell("ddp", 2) if ranks == 2 else cell("single", 1)
    outcome = RULE.check(bench(other, cell("pipeline", 4, {"pp": 4})))
    assert isinstance(outcome, tuple) is fires


def test_a_larger_batch_on_more_ranks_is_no_shrinking() -> None:
    assert isinstance(RULE.check(bench(cell("ddp", 4), cell("tensor_parallel", 2, {"tp": 2}))), Quiet)


def test_another_micro_batch_is_the_users_choice() -> None:
    cells = (cell("ddp", 4, micro_batch=8), cell("tensor_parallel", 4, {"dp": 2, "tp": 2}))
    assert isinstance(RULE.check(bench(*cells)), Quiet)


def test_a_fixed_global_batch_cannot_shrink() -> None:
    cells = (cell("ddp", 4), cell("tensor_parallel", 4, {"tp": 4}, batch_rule="global_batch"))
    assert isinstance(RULE.check(bench(*cells)), Skipped)
