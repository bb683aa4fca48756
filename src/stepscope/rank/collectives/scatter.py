"""scatter of equal parts from the root. In place: the root's output is its own part of the input."""

from __future__ import annotations

from functools import partial

import torch.distributed as dist

from stepscope.rank.collectives._common import Exchange, Piece, Setup, equal_parts


def build(setup: Setup) -> Exchange:
    source = setup.empty(setup.numel) if setup.is_root else None
    parts = None if source is None else equal_parts(source, setup)
    own = setup.empty(setup.part) if parts is None or not setup.in_place else parts[setup.rank]
    return Exchange(
        inputs=() if source is None else (Piece(tensor=source, source=setup.rank),),
        outputs=(Piece(tensor=own, source=setup.root, offset=setup.rank * setup.part),),
        issue=partial(dist.scatter, own, parts, setup.root, setup.mesh.group),
    )
