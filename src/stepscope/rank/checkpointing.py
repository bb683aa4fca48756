"""Recomputation: blocks keep their inputs in place of what lies between, and run once more in the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from stepscope.rank.instruments.accounting import Recomputed
from stepscope.records.cell import Checkpointing

_ATEN = torch.ops.aten
KEPT = {
    _ATEN.mm.default,
    _ATEN.addmm.default,
    _ATEN.bmm.default,
    _ATEN._scaled_dot_product_flash_attention_for_cpu.default,
    _ATEN._scaled_dot_product_flash_attention.default,
    _ATEN._scaled_dot_product_efficient_attention.default,
}
"""Operations whose results the selective mode keeps: expensive to repeat (the choice of torchtitan)."""


def recompute(blocks: Sequence[nn.Module], mode: Checkpointing) -> Recomputed:
    """Change the blocks' forward pass, for good; torch's own checkpointing, without reentrant autograd."""
    found = Recomputed(blocks)
    for block in blocks:
        options: dict[str, Any] = {}
        if mode == "selective":
            options["context_fn"] = partial(create_selective_checkpoint_contexts, partial(_policy, found))
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, **options)
    return found


def _policy(recomputed: Recomputed, context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    del args, kwargs
    if op not in KEPT:
        return CheckpointPolicy.PREFER_RECOMPUTE
    if not context.is_recompute:
        given = context.op_output
        for each in given if isinstance(given, tuple) else (given,):
            if isinstance(each, Tensor):
                recomputed.tell(each)
    return CheckpointPolicy.MUST_SAVE
