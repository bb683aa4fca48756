"""Kind ``collective``: one collective over all sizes.

Kind ``pairs``: messages between every two ranks, one pair at a time while the others wait in a barrier.

Every ordered pair one way, every unordered pair both ways at once. A sample is written by the two ranks of a pair.
"""

from __future__ import annotations

from itertools import combinations, permutations
from typing import Any

import torch
from torch import Tensor

from stepscope.rank.collectives import Exchange, Setup
from stepscope.rank.collectives.table import between
from stepscope.rank.comm.job import CommJob, Size, buffer_bytes, made, plan_size
from stepscope.rank.comm.loop import Call, StopReason, Timed, combine
from stepscope.rank.comm.values import Values, fill
from stepscope.records.comm import CommSample

PROBE_ELEMENTS = 4
"""Elements of one part in the call that shows what the backend refuses."""


def run(job: CommJob) -> str | None:
    """Measure every size; return why the backend cannot do any of them, or None."""
    unsupported = refused(job)
    if unsupported is None:
        for asked_bytes in job.cell.sizes_bytes if job.spec.has_payload else (0,):
            job.writer.write(_size_sample(job, planned(job, asked_bytes)))
    return unsupported


def refused(job: CommJob) -> str | None:
    """Say why this cell cannot be measured at all: one tiny call shows it, before any size."""
    if job.mesh.world_size < job.spec.min_world:
        return f"{job.cell.op} needs {job.spec.min_world} ranks or more"
    job.enter("probe", 0)
    return job.lacks(lambda: exchanges_and_call(job, PROBE_ELEMENTS * job.mesh.world_size)[1]())


def planned(job: CommJob, asked_bytes: int) -> Size:
    return plan_size(job.spec, asked_bytes, itemsize=job.dtype.itemsize, world_size=job.mesh.world_size)


def exchanges_and_call(job: CommJob, numel: int) -> tuple[list[Exchange], Call]:
    """Return buffers for every call in flight, and the one callable that makes all of them."""
    exchanges = [job.build(job.setup(numel)) for _ in range(job.cell.in_flight)]
    return exchanges, combine(exchanges, op=job.cell.op, mode=job.cell.mode, mesh=job.mesh)


def prepare(job: CommJob, size: Size) -> tuple[list[Exchange], Call] | str:
    """Return filled buffers and the call, or why there is no room for them: the same answer on every rank."""
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
    """Return the sample of a size that is skipped."""
    return CommSample(
        asked_bytes=size.asked_bytes,
        size_bytes=None,
        numel=None,
        times_ns=(),
        warmup_ns=(),
        correct=None,
        skipped=reason,
    )


def sample(size: Size, timed: Timed, **others: Any) -> CommSample:
    """Return what was measured of one size. others: the other fields."""
    return CommSample(
        asked_bytes=size.asked_bytes,
        size_bytes=size.size_bytes,
        numel=size.numel,
        times_ns=timed.times_ns,
        warmup_ns=timed.warmup_ns,
        stop_reason=timed.stop_reason,
        **others,
    )


def _size_sample(job: CommJob, size: Size) -> CommSample:
    """Return the sample of one size: its times, and whether the result is right."""
    ready = prepare(job, size)
    if isinstance(ready, str):
        return skipped(size, ready)
    exchanges, call = ready
    timed = job.measured(job.runner(call), size.size_bytes)
    job.enter("verify", size.size_bytes)
    correct, wrong = job.check(call, exchanges)
    return sample(size, timed, correct=correct, wrong=wrong)


MIN_CALLS, MOST_CALLS = 2, 20
MOST_PAIR_NS = 20_000_000
"""Most time of one pair and size, where more than ``MIN_CALLS`` messages fit into it: 8 ranks have 84 pairs."""

Pair = tuple[int, int]


def all_pairs(world_size: int) -> list[tuple[Pair, bool]]:
    """Return ((sender, receiver), False) of every ordered pair, then ((lower, higher), True) of every unordered one."""
    one_way = [(pair, False) for pair in permutations(range(world_size), 2)]
    return [*one_way, *((pair, True) for pair in combinations(range(world_size), 2))]


def run_pairs(job: CommJob) -> str | None:
    """Measure every pair at every size; return why the backend cannot, or None."""
    unsupported = refused(job)
    if unsupported is not None:
        return unsupported
    for index, asked_bytes in enumerate(job.cell.sizes_bytes):
        _sample_pairs(job, planned(job, asked_bytes), is_first=index == 0)
    return None


def _sample_pairs(job: CommJob, size: Size, *, is_first: bool) -> None:
    """Time one size between all pairs of ranks, and write their samples."""
    setup = job.setup(size.numel or 0)
    buffers = made(job, size, 2 * (size.size_bytes or 0), lambda: [setup.empty(setup.numel).fill_(1) for _ in range(2)])
    if isinstance(buffers, str):
        job.writer.write(skipped(size, buffers))
        return
    pairs = all_pairs(job.mesh.world_size)
    budget_ns = min(MOST_PAIR_NS, job.settings.budget_ns // len(pairs))
    job.enter("measure", size.size_bytes)
    for pair, bidirectional in pairs:
        job.pulse.step += 1
        values = job.values()  # by all ranks, so that they stay in step
        job.barrier()
        if job.mesh.rank not in pair:
            continue
        one = _Pairing(job, setup, pair, bidirectional, (buffers[0], buffers[1]))
        job.writer.write(one.measure(size, values, budget_ns, warm=not is_first))
    job.barrier()


class _Pairing:
    """The two ranks of one pair: their message, and how they start together."""

    def __init__(
        self, job: CommJob, setup: Setup, pair: Pair, bidirectional: bool, buffers: tuple[Tensor, Tensor]
    ) -> None:
        self._job, self._pair, self._bidirectional = job, pair, bidirectional
        sends = bidirectional or job.mesh.rank == pair[0]
        receives = bidirectional or job.mesh.rank == pair[1]
        self._peer = pair[1] if job.mesh.rank == pair[0] else pair[0]
        self._exchange = between(
            setup, to=self._peer if sends else None, source=self._peer if receives else None, buffers=buffers
        )
        self._call = self._in_mode([self._exchange])
        one = Setup(mesh=job.mesh, dtype=torch.int64, numel=1, reduce_op=None, in_place=False, root=0, pattern=None)
        self._meeting = between(one, to=self._peer, source=self._peer)
        # A barrier of two: both leave it within the time of one small message.
        self._meet = self._in_mode([self._meeting])

    def _in_mode(self, exchanges: list[Exchange]) -> Call:
        # In one group: facing sends must not wait for each other.
        return combine(exchanges, op="send_recv", mode="grouped", mesh=self._job.mesh)

    def measure(self, size: Size, values: Values, budget_ns: int, *, warm: bool) -> CommSample:
        """Send messages as often as asked, or as the pair's budget allows. The first one is checked.

        warm: the pair has exchanged messages before, so that without a fixed number none is given away as warm-up.
        """
        job, settings = self._job, self._job.settings
        fill(self._exchange, values)
        job.synchronize()
        run_pairs = job.runner(self._call, pace=self._meet)
        warmup = settings.warmup if settings.warmup is not None else 0 if warm else 1
        warmup_ns = run_pairs(min(warmup, 1))
        times_ns = [] if warmup_ns or settings.iterations == 0 else run_pairs(1)
        correct, wrong = (None, None)
        if settings.check and (warmup_ns or times_ns):
            job.synchronize()
            correct, wrong = job.verdict([self._exchange], [values])
        warmup_ns += run_pairs(warmup - len(warmup_ns))
        wanted = settings.iterations
        if wanted is None:
            affordable = budget_ns // max(1, (times_ns or warmup_ns)[-1])
            wanted = self._agree(max(MIN_CALLS, min(MOST_CALLS, affordable)))
        times_ns += run_pairs(wanted - len(times_ns))
        reason: StopReason = "most calls" if len(times_ns) >= MOST_CALLS else "budget used up"
        if settings.iterations is not None:
            reason = "fixed number of calls"
        timed = Timed(warmup_ns=tuple(warmup_ns), times_ns=tuple(times_ns), stop_reason=reason)
        return sample(size, timed, correct=correct, wrong=wrong, peer=self._pair, bidirectional=self._bidirectional)

    def _agree(self, count: int) -> int:
        """Return the lower rank's ``count``, on both."""
        self._meeting.inputs[0].tensor.fill_(count)
        self._meet()
        theirs = int(self._meeting.outputs[0].tensor)
        return count if self._job.mesh.rank < self._peer else theirs
