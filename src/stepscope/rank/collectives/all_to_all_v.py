"""all_to_all of unequal parts, as ``stepscope.collectives.all_to_all_v.part_sizes`` cuts them."""

from __future__ import annotations

from functools import partial
from itertools import accumulate

import torch.distributed as dist

from stepscope.collectives.all_to_all_v import part_sizes
from stepscope.rank.collectives._common import Exchange, Piece, Setup


def build(setup: Setup) -> Exchange:
    world, rank = range(setup.world_size), setup.rank
    sizes = part_sizes(setup.numel, world_size=setup.world_size)
    sent = [_sent(sizes, r) for r in world]
    received = [sent[r][rank] for r in world]
    source, output = setup.empty(sum(sent[rank])), setup.empty(sum(received))
    starts = [0, *accumulate(received)]
    return Exchange(
        inputs=(Piece(tensor=source, source=rank),),
        outputs=tuple(
            Piece(tensor=output[starts[r] : starts[r + 1]], source=r, offset=sum(sent[r][:rank])) for r in world
        ),
        issue=partial(dist.all_to_all_single, output, source, received, sent[rank], setup.mesh.group),
    )


def _sent(sizes: tuple[int, ...], rank: int) -> list[int]:
    """Elements that ``rank`` sends to each rank, in rank order."""
    return [sizes[(peer - rank) % len(sizes)] for peer in range(len(sizes))]
