"""reduce_scatter of one tensor. In place: a rank's output is its own part of the input."""

from __future__ import annotations

from functools import partial

from stepscope.rank.collectives._common import REDUCED, Exchange, Piece, Setup, equal_parts, reduce_scatter_single


def build(setup: Setup) -> Exchange:
    source = setup.empty(setup.numel)
    output = equal_parts(source, setup)[setup.rank] if setup.in_place else setup.empty(setup.part)
    return Exchange(
        inputs=(Piece(tensor=source, source=setup.rank),),
        outputs=(Piece(tensor=output, source=REDUCED, offset=setup.rank * setup.part),),
        issue=partial(reduce_scatter_single, output, source, setup.torch_op(), setup.mesh.group),
    )
