"""Specs of workloads and strategies together: the collectives of real models are those that were planned."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.dist.models import assert_as_planned, batch, built, setting

from stepscope.rank.mesh import Mesh
from stepscope.rank.plancheck import check, observe
from stepscope.rank.precision import Numerics
from stepscope.rank.strategies import REGISTRY as IMPLEMENTATIONS
from stepscope.records.plan import InputNeeds
from stepscope.records.precision import parameter_dtype
from stepscope.records.samples import PlanCheck
from stepscope.strategies import REGISTRY as STRATEGIES

TEXT = {"d_model": 16, "n_heads": 2, "num_layers": 2, "dim_feedforward": 32, "max_seq_len": 6, "vocab_size": 50}
MODELS: dict[str, tuple[dict[str, Any], InputNeeds]] = {
    "mlp": ({"layers": [24, 16]}, InputNeeds(kind="features", num_features=12, num_classes=4)),
    "text_classifier": (TEXT, InputNeeds(kind="tokens", seq_len=6, vocab_size=50, num_classes=3)),
    "gpt": (TEXT, InputNeeds(kind="lm", seq_len=6, vocab_size=50)),
}


def check_step(mesh: Mesh, workload: str, precision: str, key: str, variant: dict[str, Any]) -> PlanCheck:
    task, facts = built(workload, *MODELS[workload], parameter_dtype(precision))
    spec = STRATEGIES.load(key)
    chosen = spec.options(**variant)
    numerics = Numerics(precision, mesh.device)
    session = IMPLEMENTATIONS.load(key)(numerics.prepare(task.module), mesh, chosen)

    def step() -> None:
        x, y = numerics.inputs(
            *batch(MODELS[workload][1], 3 if mesh.rank else 0, dtype=torch.float32)
        )  # rank 0 has nothing to train on
        with session.micro_step(last=True):
            with numerics.autocast():
                loss = task.loss_sum(session.trainable(x), y) / 3
            numerics.backward(loss * session.loss_factor)
        session.finish()
        session.zero_grad()

    for _ in range(spec.min_warmup_steps(chosen)):
        step()
    observed = observe(step)
    session.close()
    numerics.close()
    return check(spec.comm_plan(facts, setting(mesh.world_size, precision=precision), chosen), observed)


@pytest.mark.parametrize("precision", ["fp32", "amp_bf16", "bf16"])
@pytest.mark.parametrize(
    ("key", "variant"),
    [
        ("naive", {}),
        ("interleaved", {}),
        ("bucketed", {"bucket_cap_mb": 0.002}),
        ("ddp", {"bucket_cap_mb": 0.002}),
        ("ddp", {"hook": "bf16", "bucket_cap_mb": 0.002}),
    ],
    ids=str,
)
@pytest.mark.parametrize("workload", MODELS)
def test_collectives_of_the_workloads_are_as_planned(
    pools: Any, workload: str, key: str, variant: dict[str, Any], precision: str
) -> None:
    for verdict in pools(2).run(check_step, workload, precision, key, variant):
        assert_as_planned(verdict)
