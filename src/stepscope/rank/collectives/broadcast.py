"""broadcast of one tensor. Out of place: the root copies it first."""

from __future__ import annotations

from functools import partial

import torch.distributed as dist

from stepscope.rank.collectives._common import Exchange, Piece, Setup, after_copy


def build(setup: Setup) -> Exchange:
    output = setup.empty(setup.numel)
    call = partial(dist.broadcast, output, setup.root, setup.mesh.group)
    copies = setup.is_root and not setup.in_place
    source = setup.empty(setup.numel) if copies else output
    return Exchange(
        inputs=(Piece(tensor=source, source=setup.rank),) if setup.is_root else (),
        outputs=(Piece(tensor=output, source=setup.root),),
        issue=after_copy(call, source=source, target=output) if copies else call,
    )
