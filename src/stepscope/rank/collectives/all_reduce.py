"""all_reduce on one tensor."""

from __future__ import annotations

from functools import partial

import torch.distributed as dist

from stepscope.rank.collectives._common import REDUCED, Exchange, Piece, Setup, after_copy


def build(setup: Setup) -> Exchange:
    output = setup.empty(setup.numel)
    call = partial(dist.all_reduce, output, setup.torch_op(), setup.mesh.group)
    source = output if setup.in_place else setup.empty(setup.numel)
    return Exchange(
        inputs=(Piece(tensor=source, source=setup.rank),),
        outputs=(Piece(tensor=output, source=REDUCED),),
        issue=call if setup.in_place else after_copy(call, source=source, target=output),
    )
