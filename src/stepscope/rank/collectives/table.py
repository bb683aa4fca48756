"""The implementations of the collectives on flat tensors, messages from rank to rank among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

import torch.distributed as dist
from torch import Tensor

from stepscope.collectives.table import part_sizes
from stepscope.rank.collectives.exchange import (
    REDUCED,
    Exchange,
    Issue,
    Setup,
    Stretch,
    Waitable,
    after_copy,
    all_gather_single,
    equal_parts,
    from_all,
    idle,
    reduce_scatter_single,
)


def send_recv(setup: Setup) -> Exchange:
    to, source = peers(setup.pattern or "uni", rank=setup.rank, world_size=setup.world_size)
    return between(setup, to=to, source=source)


def peers(pattern: str, *, rank: int, world_size: int) -> tuple[int | None, int | None]:
    """Return (whom ``rank`` sends to, whom it receives from)."""
    if pattern == "ring":
        return (rank + 1) % world_size, (rank - 1) % world_size
    partner = rank ^ 1
    if partner >= world_size:
        return None, None
    if pattern == "bi":
        return partner, partner
    return (partner, None) if rank % 2 == 0 else (None, partner)


def between(
    setup: Setup, *, to: int | None, source: int | None, buffers: tuple[Tensor, Tensor] | None = None
) -> Exchange:
    """Exchange a message of S to one rank and one from another; None: none. buffers: to send from and to receive into."""
    group = setup.mesh.group
    own, other = (None, None) if buffers is None else buffers
    sends: tuple[Stretch, ...] = ()
    receives: tuple[Stretch, ...] = ()
    if to is not None:
        sends = setup.sent(setup.empty(setup.numel) if own is None else own)
    if source is not None:
        receives = (Stretch(tensor=setup.empty(setup.numel) if other is None else other, source=source),)
    messages = (
        *(dist.P2POp(dist.isend, piece.tensor, to, group) for piece in sends),
        *(dist.P2POp(dist.irecv, piece.tensor, source, group) for piece in receives),
    )
    return Exchange(
        inputs=sends, outputs=receives, issue=_messages_issue(messages), messages=messages, is_send_recv=True
    )


class Batch:
    """Several requests waited for as one."""

    def __init__(self, works: Sequence[Waitable]) -> None:
        self.works = works

    def wait(self) -> None:
        for work in self.works:
            work.wait()


def _messages_issue(messages: tuple[dist.P2POp, ...]) -> Issue:
    """Return the call that sends and receives these messages, all at once."""
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


def all_gather(setup: Setup) -> Exchange:
    """all_gather into one tensor. In place: a rank's input is its own part of the output."""
    output = setup.empty(setup.numel)
    source = _own_part(setup, output)
    return Exchange(
        inputs=setup.sent(source),
        outputs=from_all(output, setup),
        issue=partial(all_gather_single, output, source, setup.mesh.group),
    )


def _own_part(setup: Setup, whole: Tensor | None) -> Tensor:
    """Return this rank's part of a tensor of S in place, else a tensor of its own."""
    return setup.empty(setup.part) if whole is None or not setup.in_place else equal_parts(whole, setup)[setup.rank]


def all_reduce(setup: Setup) -> Exchange:
    """all_reduce on one tensor."""
    return _reduced_exchange(setup, dist.all_reduce)


def _reduced_exchange(setup: Setup, collective: Callable[..., Any], *root: int) -> Exchange:
    """Return the exchange of a collective that reduces."""
    output = setup.empty(setup.numel)
    call = partial(collective, output, *root, setup.torch_op(), setup.mesh.group)
    source = output if setup.in_place else setup.empty(setup.numel)
    return Exchange(
        inputs=setup.sent(source),
        outputs=(Stretch(tensor=output, source=REDUCED),),
        issue=after_copy(call, source=source, target=output),
    )


def all_to_all(setup: Setup) -> Exchange:
    """all_to_all of equal parts of one tensor."""
    source, output = setup.empty(setup.numel), setup.empty(setup.numel)
    return Exchange(
        inputs=setup.sent(source),
        outputs=from_all(output, setup, offset=setup.rank * setup.part),
        issue=partial(dist.all_to_all_single, output, source, None, None, setup.mesh.group),
    )


def all_to_all_v(setup: Setup) -> Exchange:
    """all_to_all of unequal parts, as ``stepscope.collectives.all_to_all_v.part_sizes`` cuts them."""
    world, rank = range(setup.world_size), setup.rank
    sizes = part_sizes(setup.numel, world_size=setup.world_size)
    sent = [_sent_elements(sizes, r) for r in world]
    received = [sent[r][rank] for r in world]
    source, output = setup.empty(sum(sent[rank])), setup.empty(sum(received))
    starts = [0, *accumulate(received)]
    return Exchange(
        inputs=setup.sent(source),
        outputs=tuple(
            Stretch(tensor=output[starts[r] : starts[r + 1]], source=r, offset=sum(sent[r][:rank])) for r in world
        ),
        issue=partial(dist.all_to_all_single, output, source, received, sent[rank], setup.mesh.group),
    )


def _sent_elements(sizes: tuple[int, ...], rank: int) -> list[int]:
    """Return the elements that ``rank`` sends to each rank, in rank order."""
    return [sizes[(peer - rank) % len(sizes)] for peer in range(len(sizes))]


def barrier(setup: Setup) -> Exchange:
    """barrier: no buffers."""
    return Exchange(inputs=(), outputs=(), issue=partial(dist.barrier, setup.mesh.group))


def broadcast(setup: Setup) -> Exchange:
    """broadcast of one tensor. Out of place: the root copies it first."""
    output = setup.empty(setup.numel)
    call = partial(dist.broadcast, output, setup.root, setup.mesh.group)
    source = setup.empty(setup.numel) if setup.is_root and not setup.in_place else output
    return Exchange(
        inputs=setup.sent(source) if setup.is_root else (),
        outputs=(Stretch(tensor=output, source=setup.root),),
        issue=after_copy(call, source=source, target=output),
    )


def gather(setup: Setup) -> Exchange:
    """gather of equal parts to the root. In place: the root's input is its own part of the output."""
    output = setup.empty(setup.numel) if setup.is_root else None
    own = _own_part(setup, output)
    return Exchange(
        inputs=setup.sent(own),
        outputs=() if output is None else from_all(output, setup),
        issue=partial(
            dist.gather, own, output if output is None else equal_parts(output, setup), setup.root, setup.mesh.group
        ),
    )


def reduce(setup: Setup) -> Exchange:
    """reduce of one tensor to the root. The other ranks' tensors are undefined afterwards."""
    exchange = _reduced_exchange(setup, dist.reduce, setup.root)
    return exchange if setup.is_root else replace(exchange, outputs=())


def reduce_scatter(setup: Setup) -> Exchange:
    """reduce_scatter of one tensor. In place: a rank's output is its own part of the input."""
    source = setup.empty(setup.numel)
    output = _own_part(setup, source)
    return Exchange(
        inputs=setup.sent(source),
        outputs=(Stretch(tensor=output, source=REDUCED, offset=setup.rank * setup.part),),
        issue=partial(reduce_scatter_single, output, source, setup.torch_op(), setup.mesh.group),
    )


def scatter(setup: Setup) -> Exchange:
    """scatter of equal parts from the root. In place: the root's output is its own part of the input."""
    source = setup.empty(setup.numel) if setup.is_root else None
    own = _own_part(setup, source)
    return Exchange(
        inputs=() if source is None else setup.sent(source),
        outputs=(Stretch(tensor=own, source=setup.root, offset=setup.rank * setup.part),),
        issue=partial(
            dist.scatter, own, source if source is None else equal_parts(source, setup), setup.root, setup.mesh.group
        ),
    )


Build = Callable[[Setup], Exchange]

_BUILDS: tuple[Build, ...] = (
    all_gather,
    all_reduce,
    all_to_all,
    all_to_all_v,
    barrier,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    scatter,
    send_recv,
)
TABLE = {build.__name__: build for build in _BUILDS}
