"""One callable for what a sample times: the calls of all exchanges, in the cell's mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from stepscope.rank.collectives import Exchange, Issue, Waitable
from stepscope.rank.mesh import Mesh
from stepscope.records.comm import Mode

Call = Callable[[], object]

COALESCED_BY_TORCH = frozenset({"all_reduce", "all_gather", "reduce_scatter"})
"""torch hands these to the backend as one call on many tensors; all others need a backend that can hold calls back."""


class BackendLacksError(Exception):
    """The backend cannot do this, in its own words."""


def combine(exchanges: Sequence[Exchange], *, op: str, mode: Mode, mesh: Mesh) -> Call:
    """Issue every exchange once and return when all are through (on GPU: are waited for by the current stream).

    Raises BackendLacksError; on every rank alike, and with nothing sent.
    """
    issues = [exchange.issue for exchange in exchanges]
    if mode == "blocking":
        return _one_by_one(issues)
    if mode == "async":
        return _in_flight(issues)
    if mode == "coalesced":
        return _coalesced(issues, op, mesh)
    if not all(exchange.is_send_recv for exchange in exchanges):
        raise BackendLacksError(f"torch groups point-to-point calls only, not {op}")
    return _grouped([message for exchange in exchanges for message in exchange.messages])


def _one_by_one(issues: Sequence[Issue]) -> Call:
    if len(issues) == 1:
        return partial(issues[0], async_op=False)

    def call() -> None:
        for issue in issues:
            issue(async_op=False)

    return call


def _in_flight(issues: Sequence[Issue]) -> Call:
    def call() -> None:
        works = [issue(async_op=True) for issue in issues]
        for work in works:
            if work is not None:
                work.wait()

    return call


def _coalesced(issues: Sequence[Issue], op: str, mesh: Mesh) -> Call:
    device = None if op in COALESCED_BY_TORCH else mesh.device
    if device is not None:
        _try_to_hold_back(mesh, device)

    def call() -> None:
        with c10d._coalescing_manager(mesh.group, device, async_ops=True) as manager:
            for issue in issues:
                issue(async_op=True)
        manager.wait()

    return call


def _try_to_hold_back(mesh: Mesh, device: torch.device) -> None:
    """Ask the backend itself: torch's own context manager would stay half open where it refuses."""
    group = mesh.group or c10d._get_default_group()
    try:
        group._start_coalescing(device)
        group._end_coalescing(device)
    except (RuntimeError, NotImplementedError) as error:
        raise BackendLacksError(first_line(error)) from error


def _grouped(messages: list[dist.P2POp]) -> Call:
    if not messages:
        return lambda: None

    def call() -> None:
        for work in dist.batch_isend_irecv(messages):
            cast(Waitable, work).wait()

    return call


def leave_coalescing(mesh: Mesh) -> None:
    """Close what an error has left open in torch: until then every call is taken for part of a coalesced one."""
    c10d._world.pg_coalesce_state.pop(mesh.group or c10d._get_default_group(), None)


def first_line(error: BaseException) -> str:
    """The error in one line."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
