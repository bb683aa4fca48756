"""all_to_all of equal parts of one tensor."""

from __future__ import annotations

from functools import partial

import torch.distributed as dist

from stepscope.rank.collectives._common import Exchange, Piece, Setup, from_all


def build(setup: Setup) -> Exchange:
    source, output = setup.empty(setup.numel), setup.empty(setup.numel)
    return Exchange(
        inputs=(Piece(tensor=source, source=setup.rank),),
        outputs=from_all(output, setup, offset=setup.rank * setup.part),
        issue=partial(dist.all_to_all_single, output, source, None, None, setup.mesh.group),
    )
