"""Messages from rank to rank, in the patterns of ``stepscope.collectives.table``."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor

from stepscope.rank.collectives.exchange import Exchange, Issue, Setup, Stretch, Waitable, idle


def send_recv(setup: Setup) -> Exchange:
    to, source = peers(setup.pattern or "uni", rank=setup.rank, world_size=setup.world_size)
    return between(setup, to=to, source=source)


def peers(pattern: str, *, rank: int, world_size: int) -> tuple[int | None, int | None]:
    """(whom ``rank`` sends to, whom it receives from)."""
    if pattern == "ring":
        return (rank + 1) % world_size, (rank - 1) % world_size
    partner = rank ^ 1
    if partner >= world_size:
        return None, None
    if pattern == "bi":
        return partner, partner
    return (partner, None) if rank % 2 == 0 else (None, partner)


def between(
    setup: Setup,
    *,
    to: int | None,
    source: int | None,
    buffers: tuple[Tensor, Tensor] | None = None,
) -> Exchange:
    """A message of S to one rank and one from another; None: none. buffers: to send from and to receive into."""
    group = setup.mesh.group
    own, other = (None, None) if buffers is None else buffers
    sends: tuple[Stretch, ...] = ()
    receives: tuple[Stretch, ...] = ()
    if to is not None:
        sends = (Stretch(tensor=setup.empty(setup.numel) if own is None else own, source=setup.rank),)
    if source is not None:
        receives = (Stretch(tensor=setup.empty(setup.numel) if other is None else other, source=source),)
    messages = (
        *(dist.P2POp(dist.isend, piece.tensor, to, group) for piece in sends),
        *(dist.P2POp(dist.irecv, piece.tensor, source, group) for piece in receives),
    )
    return Exchange(inputs=sends, outputs=receives, issue=_issue(messages), messages=messages, is_send_recv=True)


class Batch:
    """Several requests waited for as one."""

    def __init__(self, works: Sequence[Waitable]) -> None:
        self.works = works

    def wait(self) -> None:
        for work in self.works:
            work.wait()


def _issue(messages: tuple[dist.P2POp, ...]) -> Issue:
    if not messages:
        return idle
    if len(messages) == 1:
        return _one_way(messages[0])

    def both(*, async_op: bool) -> Waitable | None:
        # One group: two blocking sends facing each other would wait for ever.
        batch = Batch(dist.batch_isend_irecv(list(messages)))
        if async_op:
            return batch
        batch.wait()
        return None

    return both


def _one_way(message: dist.P2POp) -> Issue:
    tensor, peer, group = message.tensor, message.peer, message.group
    blocking = dist.send if message.op is dist.isend else dist.recv

    def one(*, async_op: bool) -> Waitable | None:
        if async_op:
            work: Waitable | None = message.op(tensor, peer, group)
            return work
        blocking(tensor, peer, group)
        return None

    return one
