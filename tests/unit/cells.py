"""A cell to test with: everything plain, changed where a test cares."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stepscope.records.cell import CellSpec

PLAIN = CellSpec(
    cell_id="cell", workload="mlp", model={"size": "tiny"}, dataset="synthetic", dataset_options={},
    data_digest="d", strategy="naive", strategy_options={}, precision="fp32", accumulation=1, world_size=2,
    micro_batch=16, global_batch=32, batch_rule="global_batch", optimizer="sgd", lr=0.1, momentum=0.0, lr_warmup=0,
    weight_decay=0.0, clip=None, loss="ce", steps="auto", epochs=None, seed=1, num_workers=0, pin_memory=False,
    persistent_workers=False, cudnn_benchmark=False, device="cpu", backend="gloo", threads_per_rank="auto",
)  # fmt: skip


def cell_spec(**changes: Any) -> CellSpec:
    return replace(PLAIN, **changes)
