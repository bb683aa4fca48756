"""gather of equal parts to the root. In place: the root's input is its own part of the output."""

from __future__ import annotations

from functools import partial

import torch.distributed as dist

from stepscope.rank.collectives._common import Exchange, Piece, Setup, equal_parts, from_all


def build(setup: Setup) -> Exchange:
    output = setup.empty(setup.numel) if setup.is_root else None
    parts = None if output is None else equal_parts(output, setup)
    own = setup.empty(setup.part) if parts is None or not setup.in_place else parts[setup.rank]
    return Exchange(
        inputs=(Piece(tensor=own, source=setup.rank),),
        outputs=() if output is None else from_all(output, setup),
        issue=partial(dist.gather, own, parts, setup.root, setup.mesh.group),
    )
