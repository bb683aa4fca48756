"""One comm cell on one rank: agree on what is asked, measure, write the summary."""

from __future__ import annotations

import json
from collections.abc import Callable

import torch
import torch.distributed as dist

from stepscope.collectives import REGISTRY as SPECS
from stepscope.core.errors import UsageError
from stepscope.rank import flight
from stepscope.rank.comm import overlap, sweep
from stepscope.rank.comm.job import CommJob
from stepscope.rank.comm.loop import clock_of
from stepscope.rank.mesh import reset
from stepscope.rank.pace import Control
from stepscope.rank.startup import RankContext
from stepscope.records import codec
from stepscope.records.comm import CommHeader, CommKind, CommMeasure, CommSpec, CommSummary
from stepscope.store.writer import LineFile, write_record

KINDS: dict[CommKind, Callable[[CommJob], str | None]] = {
    "collective": sweep.run,
    "pairs": sweep.run_pairs,
    "matmul": overlap.run_matmul,
    "overlap": overlap.run,
}

COPY_NOTE = "out of place, torch has no such call: the time includes a copy of the input"


def run_comm(cell: CommSpec, context: RankContext) -> None:
    """Measure ``cell``. The summary, written last, tells the controller that this rank is through.

    Raises UsageError when ranks were given different arguments. What the backend cannot do is no error: the summary
    says it, and the group goes on.
    """
    mesh, files = context.mesh, context.layout.cell(cell.cell_id)
    context.pulse.enter("agree", op=cell.op)
    settings = context.group.comm_measure
    assert_agreed(cell, settings, context.control)
    reset(mesh.device, seed=0, threads=context.group.threads_per_rank, cudnn_benchmark=False)
    header = CommHeader(
        cell_id=cell.cell_id,
        rank=mesh.rank,
        world_size=mesh.world_size,
        host=context.pulse.host,
        clock=clock_of(mesh.device),
    )
    with LineFile(files.samples(mesh.rank), header, "wb") as writer:
        job = CommJob(
            cell=cell, settings=settings, mesh=mesh, control=context.control, pulse=context.pulse, writer=writer
        )
        unsupported = KINDS[cell.kind](job)
    context.pulse.enter("finish")
    flight.assert_same_calls(context.control)
    context.control.barrier()
    write_record(files.summary(mesh.rank), _comm_summary(cell, context, unsupported))


def assert_agreed(cell: CommSpec, settings: CommMeasure, control: Control) -> None:
    """Raise UsageError, on every rank, when some rank was asked for something else than rank 0. Sends no collective."""
    arguments = {
        name: json.dumps(value, sort_keys=True)
        for record in (cell, settings)
        for name, value in codec.to_builtins(record).items()
    }
    ranks: list[dict[str, str]] = control.all_gather(arguments)
    for rank, other in enumerate(ranks):
        different = [
            f"{name} is {other.get(name)}, on rank 0 it is {value}"
            for name, value in ranks[0].items()
            if other.get(name) != value
        ]
        if different:
            raise UsageError(
                f"rank {rank} has other arguments than rank 0",
                why="; ".join(different),
                fix="start all ranks with the same arguments",
            )


def _comm_summary(cell: CommSpec, context: RankContext, unsupported: str | None) -> CommSummary:
    """Return the summary of a cell: backend, versions, and why it is not supported."""
    copies = cell.kind != "matmul" and not SPECS.load(cell.op).out_of_place
    return CommSummary(
        cell_id=cell.cell_id,
        **context.facts(),
        # gloo has no version of its own in torch
        backend_version=".".join(map(str, torch.cuda.nccl.version())) if dist.get_backend() == "nccl" else None,  # type: ignore[no-untyped-call]
        unsupported=unsupported,
        notes=(COPY_NOTE,) if copies and not cell.in_place else (),
    )
