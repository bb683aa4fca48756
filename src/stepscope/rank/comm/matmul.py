"""Kind ``matmul``: square matrix products on every rank at once, no communication: the FLOP/s that can be had."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from stepscope.rank.comm.calls import Call
from stepscope.rank.comm.job import CommJob
from stepscope.rank.comm.loop import clock_of, measure, time_calls
from stepscope.rank.comm.sizes import Size, allocate, no_room
from stepscope.rank.comm.sweep import sample, skipped
from stepscope.records.comm import CommSample

ALIGNED_FROM, ALIGNMENT = 128, 16
"""Larger matrices get a multiple of 16 rows, as the matrix units of GPUs want it."""


def run(job: CommJob) -> str | None:
    """Measure every size; why this device has no such product, or None."""
    job.enter("probe", 0)
    unsupported = job.lacks(lambda: product_of(job, 16)())
    if unsupported is None:
        for asked_bytes in job.cell.sizes_bytes:
            job.writer.write(_one_size(job, asked_bytes))
    return unsupported


def rows_of(asked_bytes: int, *, itemsize: int) -> int:
    """Rows of the largest square matrix in ``asked_bytes``; above 128 rounded down to a multiple of 16."""
    rows = math.isqrt(max(0, asked_bytes) // itemsize)
    return rows if rows < ALIGNED_FROM else rows // ALIGNMENT * ALIGNMENT


def product_of(job: CommJob, rows: int) -> Call:
    """One product of two ``rows`` x ``rows`` matrices into a third."""
    a, b, out = (_matrix(job, rows, fill) for fill in (1, 1, 0))
    return partial(torch.mm, a, b, out=out)


def _matrix(job: CommJob, rows: int, value: int) -> Tensor:
    matrix = torch.empty(rows, rows, dtype=job.dtype, device=job.device)
    if value == 0:
        return matrix.zero_()
    if job.dtype.is_floating_point:
        # Not constants: power, and with it the clock of a GPU, depends on how many bits flip.
        return matrix.uniform_(-1, 1)
    return matrix.random_(0, 8)


def _one_size(job: CommJob, asked_bytes: int) -> CommSample:
    rows = rows_of(asked_bytes, itemsize=job.dtype.itemsize)
    size_bytes = rows * rows * job.dtype.itemsize
    size = Size(asked_bytes=asked_bytes, size_bytes=size_bytes, numel=rows * rows)
    if rows == 0:
        return skipped(size, f"{asked_bytes} bytes hold no matrix")
    job.enter("build", size_bytes)
    reason = no_room(job, 3 * size_bytes, size_bytes=size_bytes)
    made: list[Call] = []
    if reason is None:
        reason = allocate(job, lambda: made.append(product_of(job, rows)), size_bytes=size_bytes)
    if reason is not None:
        return skipped(size, reason)
    timed = measure(
        partial(_timed_product, job, made[0]),
        job.settings,
        job.control,
        on_phase=partial(job.enter, size_bytes=size_bytes),
    )
    return sample(size, timed, correct=None, beside_ns=timed.times_ns)


def _timed_product(job: CommJob, product: Call, count: int) -> list[int]:
    job.pulse.step += count
    job.control.barrier()  # all ranks compute at once: cores and power are shared
    return time_calls(product, count, clock=clock_of(job.device))
