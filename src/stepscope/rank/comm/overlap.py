"""Kind ``overlap``: the collective alone, matrix products alone, both at once: how much each slows the other.

The products last about as long as the collective. On CPU it runs in the backend's threads while this one computes; on
GPU on a stream of its own.

Kind ``matmul``: the products on every rank at once, no communication: the FLOP/s that can be had.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from functools import partial
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepscope.rank.collectives import Exchange, Waitable
from stepscope.rank.collectives.table import Batch
from stepscope.rank.comm.job import CommJob, Size, made
from stepscope.rank.comm.loop import Call, clock_of, time_calls
from stepscope.rank.comm.sweep import planned, prepare, refused, sample, skipped
from stepscope.rank.timer import between_ns, cuda_event
from stepscope.records.comm import CommSample

ALIGNED_FROM, ALIGNMENT = 128, 16
"""Larger matrices get a multiple of 16 rows, as the matrix units of GPUs want it."""


def run_matmul(job: CommJob) -> str | None:
    """Measure every size; return why this device has no such product, or None."""
    job.enter("probe", 0)
    unsupported = job.lacks(lambda: product_of(job, 16)())
    if unsupported is None:
        for asked_bytes in job.cell.sizes_bytes:
            job.writer.write(_matmul_sample(job, asked_bytes))
    return unsupported


def rows_of(asked_bytes: int, *, itemsize: int) -> int:
    """Return the rows of the largest square matrix in ``asked_bytes``; above 128 rounded down to a multiple of 16."""
    rows = math.isqrt(max(0, asked_bytes) // itemsize)
    return rows if rows < ALIGNED_FROM else rows // ALIGNMENT * ALIGNMENT


def product_of(job: CommJob, rows: int) -> Call:
    """Return a call that multiplies two ``rows`` x ``rows`` matrices into a third."""
    a, b, out = (_filled_matrix(job, rows, fill) for fill in (1, 1, 0))
    return partial(torch.mm, a, b, out=out)


def _filled_matrix(job: CommJob, rows: int, value: int) -> Tensor:
    """Return a square matrix, random or of zeros."""
    matrix = torch.empty(rows, rows, dtype=job.dtype, device=job.device)
    if value == 0:
        return matrix.zero_()
    if job.dtype.is_floating_point:
        # Not constants: power, and with it the clock of a GPU, depends on how many bits flip.
        return matrix.uniform_(-1, 1)
    return matrix.random_(0, 8)


def _matmul_sample(job: CommJob, asked_bytes: int) -> CommSample:
    """Return the sample of one size of product."""
    rows = rows_of(asked_bytes, itemsize=job.dtype.itemsize)
    size_bytes = rows * rows * job.dtype.itemsize
    size = Size(asked_bytes=asked_bytes, size_bytes=size_bytes, numel=rows * rows)
    if rows == 0:
        return skipped(size, f"{asked_bytes} bytes hold no matrix")
    product = made(job, size, 3 * size_bytes, partial(product_of, job, rows))
    if isinstance(product, str):
        return skipped(size, product)
    timed = job.measured(partial(_timed_product, job, product), size_bytes)
    return sample(size, timed, correct=None, beside_ns=timed.times_ns)


def _timed_product(job: CommJob, product: Call, count: int) -> list[int]:
    job.pulse.step += count
    job.control.barrier()  # all ranks compute at once: cores and power are shared
    return time_calls(product, count, clock=clock_of(job.device))


ROWS = {"cpu": 256, "cuda": 2048}
"""Rows of one product: some hundred microseconds, the granularity of what runs beside the collective."""

SIZING_CALLS = 5
MOST_PRODUCTS = 100_000


def run(job: CommJob) -> str | None:
    """Measure every size; return why the backend cannot, or None."""
    unsupported = refused(job)
    if unsupported is None:
        unsupported = job.lacks(lambda: product_of(job, 16)())
    if unsupported is None:
        product = product_of(job, ROWS[job.device.type])
        for asked_bytes in job.cell.sizes_bytes:
            for sample in _size_samples(job, planned(job, asked_bytes), product):
                job.writer.write(sample)
    return unsupported


def _size_samples(job: CommJob, size: Size, product: Call) -> list[CommSample]:
    """Return the samples of one size: collective and products alone, then together."""
    ready = prepare(job, size)
    if isinstance(ready, str):
        return [skipped(size, ready)]
    exchanges, call = ready
    step = _OnGpu(job, exchanges) if job.device.type == "cuda" else _OnCpu(job, exchanges)
    products = _products_as_long_as(job, size, step, product)
    samples = []
    for label, both in (("alone", False), ("together", True)):
        beside: list[int] = []
        run = partial(_iteration_ns, job, step, products, beside, both=both)
        timed = job.measured(run, size.size_bytes)
        correct, wrong = job.check(call, exchanges) if both else (None, None)
        ran = tuple(beside[len(timed.warmup_ns) :])
        samples.append(sample(size, timed, correct=correct, wrong=wrong, beside_ns=ran, label=label))
    return samples


Compute = Callable[[], object]


def _iteration_ns(
    job: CommJob, step: _OnCpu | _OnGpu, products: Compute, beside: list[int], count: int, *, both: bool
) -> list[int]:
    """Make ``count`` iterations; return the collective's times; those of the products go to ``beside``."""
    times = []
    for _ in range(count):
        job.pulse.step += 1
        job.barrier()
        if both:
            collective_ns, products_ns = step.together(products)
        else:
            collective_ns, _ = step.together(None)
            products_ns = step.products(products)
        times.append(collective_ns)
        beside.append(products_ns)
    return times


def _products_as_long_as(job: CommJob, size: Size, step: _OnCpu | _OnGpu, product: Call) -> Compute:
    """Return so many products that they last about as long as the collective; the same number on every rank."""
    job.enter("warmup", size.size_bytes)
    medians = []
    calls: tuple[Callable[[], int], ...] = (lambda: step.together(None)[0], partial(step.products, product))
    for timed in calls:
        times = []
        for _ in range(SIZING_CALLS):
            job.barrier()
            times.append(timed())
        medians.append(float(np.median(times)))
    ranks = job.control.all_gather(medians)
    collective_ns, product_ns = (max(one[i] for one in ranks) for i in (0, 1))
    count = max(1, min(MOST_PRODUCTS, round(collective_ns / max(1.0, product_ns))))

    def products() -> None:
        for _ in range(count):
            product()

    return products


class _OnCpu:
    """The collective runs in the backend's threads; it ends when its last request is done, whoever waits by then."""

    def __init__(self, job: CommJob, exchanges: list[Exchange]) -> None:
        del job
        self._issues = [exchange.issue for exchange in exchanges]

    def products(self, products: Compute) -> int:
        start = perf_counter_ns()
        products()
        return perf_counter_ns() - start

    def together(self, products: Compute | None) -> tuple[int, int]:
        """Run both; return (duration of the collective, of the products), ns."""
        start = perf_counter_ns()
        works = _requests_with_futures([issue(async_op=True) for issue in self._issues])
        ends = _note_ends(works)
        computing = computed = perf_counter_ns()
        if products is not None:
            products()
            computed = perf_counter_ns()
        end = ends()
        return (start if end is None else end) - start, computed - computing


def _note_ends(works: list[Any]) -> Callable[[], int | None]:
    """Begin to watch ``works``; the function returned waits for all and says when the last one was done."""
    stamps: list[int] = []

    def done(future: Any) -> None:
        del future
        stamps.append(perf_counter_ns())

    def wait() -> None:
        for work in works:
            work.wait()
        stamps.append(perf_counter_ns())

    def last() -> int | None:
        """Wait for all; return the end of the last one, ns; None: there was none."""
        for work in works:
            work.wait()
        waited = perf_counter_ns()
        if not works:
            return None
        # A callback may still be on its way when the wait is over.
        return max(stamps) if len(stamps) == len(works) else waited

    def joined() -> int:
        watcher.join()
        return stamps[-1]

    try:
        for work in works:
            work.get_future().add_done_callback(done)
    except RuntimeError:  # point-to-point requests of gloo have no future
        watcher = threading.Thread(target=wait, name="stepscope-overlap", daemon=True)
        watcher.start()
        return joined
    return last


def _requests_with_futures(issued: Iterable[Waitable | None]) -> list[Any]:
    """Return torch's own requests, each with a future."""
    works: list[Any] = []
    for one in issued:
        works += one.works if isinstance(one, Batch) else [] if one is None else [one]
    return works


class _OnGpu:
    """The collective on a stream of its own, the products on the current one, both timed by events."""

    def __init__(self, job: CommJob, exchanges: list[Exchange]) -> None:
        self._device = job.device
        self._issues = [exchange.issue for exchange in exchanges]
        self._stream = torch.cuda.Stream(job.device)  # type: ignore[no-untyped-call]

    def products(self, products: Compute) -> int:
        """Return the time of the products alone, ns."""
        start, end = cuda_event(), cuda_event()
        start.record()
        products()
        end.record()
        end.synchronize()
        return between_ns(start, end)

    def together(self, products: Compute | None) -> tuple[int, int]:
        """Return the times of the collective and of the products beside it, ns."""
        events = [cuda_event() for _ in range(4)]
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            events[0].record()
            works = [issue(async_op=True) for issue in self._issues]
            for work in works:
                if work is not None:
                    work.wait()
            events[1].record()
        events[2].record()
        if products is not None:
            products()
        events[3].record()
        torch.cuda.synchronize(self._device)
        return between_ns(events[0], events[1]), between_ns(events[2], events[3])
