"""reduce of one tensor to the root. The other ranks' tensors are undefined afterwards."""

from __future__ import annotations

from functools import partial

import torch.distributed as dist

from stepscope.rank.collectives._common import REDUCED, Exchange, Piece, Setup, after_copy


def build(setup: Setup) -> Exchange:
    output = setup.empty(setup.numel)
    call = partial(dist.reduce, output, setup.root, setup.torch_op(), setup.mesh.group)
    source = output if setup.in_place else setup.empty(setup.numel)
    return Exchange(
        inputs=(Piece(tensor=source, source=setup.rank),),
        outputs=(Piece(tensor=output, source=REDUCED),) if setup.is_root else (),
        issue=call if setup.in_place else after_copy(call, source=source, target=output),
    )
