"""Kind ``collective``: one collective over all sizes."""

from __future__ import annotations

from functools import partial
from typing import Any

from stepscope.rank.collectives import Exchange
from stepscope.rank.comm.job import CommJob
from stepscope.rank.comm.loop import Call, Timed, combine, measure
from stepscope.rank.comm.sizes import Size, buffer_bytes, made, plan_size
from stepscope.records.comm import CommSample

PROBE_ELEMENTS = 4
"""Of one part: the call that shows what the backend refuses."""


def run(job: CommJob) -> str | None:
    """Measure every size; why the backend cannot do any of them, or None."""
    unsupported = refused(job)
    if unsupported is None:
        for asked_bytes in job.cell.sizes_bytes if job.spec.has_payload else (0,):
            job.writer.write(_one_size(job, planned(job, asked_bytes)))
    return unsupported


def refused(job: CommJob) -> str | None:
    """Why this cell cannot be measured at all: found by one tiny call, before any size."""
    if job.mesh.world_size < job.spec.min_world:
        return f"{job.cell.op} needs {job.spec.min_world} ranks or more"
    job.enter("probe", 0)
    return job.lacks(lambda: exchanges_and_call(job, PROBE_ELEMENTS * job.mesh.world_size)[1]())


def planned(job: CommJob, asked_bytes: int) -> Size:
    return plan_size(job.spec, asked_bytes, itemsize=job.dtype.itemsize, world_size=job.mesh.world_size)


def exchanges_and_call(job: CommJob, numel: int) -> tuple[list[Exchange], Call]:
    """Buffers for every call in flight, and the one callable that makes all of them."""
    exchanges = [job.build(job.setup(numel)) for _ in range(job.cell.in_flight)]
    return exchanges, combine(exchanges, op=job.cell.op, mode=job.cell.mode, mesh=job.mesh)


def prepare(job: CommJob, size: Size) -> tuple[list[Exchange], Call] | str:
    """Filled buffers and the call, or why there is no room for them: the same answer on every rank."""
    if size.numel is None:
        return size.skipped or "nothing to send"
    numel = size.numel

    def make() -> tuple[list[Exchange], Call]:
        exchanges, call = exchanges_and_call(job, numel)
        for exchange in exchanges:
            for piece in (*exchange.outputs, *exchange.inputs):
                piece.tensor.fill_(1)  # touched: the first timed call must not be the one that maps the pages
        return exchanges, call

    return made(job, size, job.cell.in_flight * buffer_bytes(job.build, job.setup(numel), op=job.cell.op), make)


def skipped(size: Size, reason: str) -> CommSample:
    return CommSample(
        asked_bytes=size.asked_bytes,
        size_bytes=None,
        numel=None,
        times_ns=(),
        warmup_ns=(),
        correct=None,
        skipped=reason,
    )


def sample(size: Size, timed: Timed, **found: Any) -> CommSample:
    """What was measured of one size. found: the other fields."""
    return CommSample(
        asked_bytes=size.asked_bytes,
        size_bytes=size.size_bytes,
        numel=size.numel,
        times_ns=timed.times_ns,
        warmup_ns=timed.warmup_ns,
        stop_reason=timed.stop_reason,
        **found,
    )


def _one_size(job: CommJob, size: Size) -> CommSample:
    ready = prepare(job, size)
    if isinstance(ready, str):
        return skipped(size, ready)
    exchanges, call = ready
    timed = measure(
        job.runner(call), job.settings, job.control, on_phase=partial(job.enter, size_bytes=size.size_bytes)
    )
    job.enter("verify", size.size_bytes)
    correct, wrong = job.check(call, exchanges)
    return sample(size, timed, correct=correct, wrong=wrong)
