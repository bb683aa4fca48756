"""all_gather into one tensor. In place: a rank's input is its own part of the output."""

from __future__ import annotations

from functools import partial

from stepscope.rank.collectives._common import Exchange, Piece, Setup, all_gather_single, equal_parts, from_all


def build(setup: Setup) -> Exchange:
    output = setup.empty(setup.numel)
    source = equal_parts(output, setup)[setup.rank] if setup.in_place else setup.empty(setup.part)
    return Exchange(
        inputs=(Piece(tensor=source, source=setup.rank),),
        outputs=from_all(output, setup),
        issue=partial(all_gather_single, output, source, setup.mesh.group),
    )
