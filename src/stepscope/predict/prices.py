"""What a job's collectives cost on other ranks: from a calibration, its own transfers, or the hardware's tables."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import cache

from stepscope.collectives import REGISTRY as COLLECTIVES
from stepscope.core.dataclass import record
from stepscope.core.errors import UsageError
from stepscope.core.words import in_words
from stepscope.predict.calibrated import FitWanted, time_of, world_spread
from stepscope.predict.calibration import usual_cost
from stepscope.predict.collectives.choose import known_gpu, predict_collective
from stepscope.predict.collectives.costs import Z80, Price
from stepscope.predict.collectives.machine import Fabric
from stepscope.predict.job import MeasuredJob, replayed
from stepscope.predict.line_fit import relative_line
from stepscope.records.calibration import Calibration

FIT = 1.25
"""The job's transfers agree with the tables within this factor."""


@record
class Prices:
    """Prices by of(op, size_bytes, ranks). source: where they come from, in words. fitted: to the measured step itself,
    which therefore checks nothing. notes: what is assumed."""

    source: str
    of: Callable[[str, int, int], Price]
    notes: tuple[str, ...] = ()
    fitted: bool = False


@record
class Links:
    """Where the ranks would sit. fabric: between nodes; None: the usual one. pcie: no links between GPUs."""

    gpus_per_node: int | None = None
    fabric: Fabric | None = None
    adapters: int | None = None
    pcie: bool = False


def calibrated_prices(calibration: Calibration, *, backend: str | None, network: str | None) -> Prices:
    """Prices from ``stepscope calibrate``. Raises UsageError for collectives that it does not hold."""
    asked = FitWanted(backend=backend, network=network)

    @cache
    def of(op: str, size_bytes: int, ranks: int) -> Price:
        one_way = replace(asked, pattern="uni") if op == "send_recv" else asked
        return time_of(calibration, op, size_bytes, ranks, asked=one_way)

    worlds = in_words(sorted({fit.world_size for fit in calibration.fits}))
    return Prices(
        source=f"the calibration of {calibration.run}, measured on {worlds} ranks; on others by the steps and bytes of each "
        "algorithm",
        of=of,
    )


def own_prices(job: MeasuredJob, links: Links, *, gpu: str | None = None) -> Prices:
    """Prices from the job's own transfers: a line over their sizes at its own number of ranks.

    Elsewhere they change with a known GPU as the hardware's tables do from here to there, without one by the steps and bytes
    of the backend's algorithm. What the job's network says nothing of (it ran inside one node, the question is about
    several; another GPU or link) comes from the tables alone. Without transfers, they are what makes the replay take the
    measured step. gpu: of the question; None: the job's. Raises UsageError where neither the job nor tables say anything.
    """
    if job.fixed_ranks > 1:
        raise UsageError(
            f"{job.name}: its collectives are among parts of its ranks",
            why="which links those use is not in a run, so neither the tables nor the step can price them",
            fix="stepscope comm -o COMM, stepscope calibrate COMM, then --calib COMM/calib.json",
        )
    where = gpu or job.gpu
    table = None if where is None else _table_prices(job, where, links)
    if job.ranks == 1:
        if table is None:
            raise _no_price_error(
                job, why="one rank communicates with no other, and its GPU is not in the hardware table"
            )
        return Prices(source=f"the tables of {where}", of=table, notes=_place_assumptions(job, links))
    here = _own_line_prices(job)
    elsewhere = None if table is None else _of_job(job, here)
    carried = here is None
    of_job = here or _replay_prices(job, elsewhere)
    changed = gpu is not None and gpu != job.gpu
    notes = list(_place_assumptions(job, links)) if table is not None else []
    apart = _own_over_table(job, of_job, elsewhere)
    # On one rank of several a collective's time includes waiting for the others.
    slower = 1.0 if apart is None or apart < 1 else math.sqrt(apart) if job.seen_ranks == 1 else apart
    if apart is not None and not 1 / FIT < apart < FIT:
        carried_over = (
            "for links that it did not use the tables are taken, and the interval reaches as far below"
            if apart < 1
            else "links that it did not use are taken to be as much slower; the interval's fast end is the tables'"
            if slower == apart
            else "much of that may be waiting for ranks that were not traced: links that it did not use are taken to be "
            f"{slower:.2g} times as slow, and the interval reaches from once to {apart:.2g} times"
        )
        notes.append(
            f"the job's collectives take {apart:.2g} times what the tables say for {job.gpu} on {job.ranks} GPUs: "
            f"{carried_over}"
        )

    @cache
    def of(op: str, size_bytes: int, ranks: int) -> Price:
        """Return the price of a call on so many ranks: the job's own, scaled by tables or bytes where ranks or links are
        others."""
        own = of_job(op, size_bytes)
        if ranks == job.ranks and not changed and not _other_links(job, links, ranks):
            return own
        if table is None:
            return _scaled_price(job, own, op, size_bytes, ranks)
        there = table(op, size_bytes, ranks)
        if elsewhere is not None and not changed and not _other_links(job, links, ranks):
            before = elsewhere(op, size_bytes, job.ranks).time_ns
            ratio = there.time_ns / before if before else 1.0
            return _price_with_spread(own.time_ns * ratio, own, world_spread(ranks, job.ranks))
        fastest, slowest = min(1.0, apart or 1.0), max(1.0, apart or 1.0)
        return Price(time_ns=there.time_ns * slower, low_ns=there.low_ns * fastest, high_ns=there.high_ns * slowest)

    source = "what makes the replay take the measured step" if carried else "the job's own transfers"
    return Prices(
        source=source if table is None else f"{source}; on links that it did not use the tables for {where}",
        of=of,
        notes=tuple(notes),
        fitted=carried,
    )


def _price_with_spread(time_ns: float, like: Price, extra: float) -> Price:
    """``time_ns`` with the relative interval of ``like``, widened by ``extra`` (of log) in quadrature."""
    if not time_ns or not like.time_ns:
        return Price(time_ns=time_ns, low_ns=time_ns, high_ns=time_ns)
    low, high = math.log(like.time_ns / like.low_ns), math.log(like.high_ns / like.time_ns)
    return Price(
        time_ns=time_ns,
        low_ns=time_ns * math.exp(-math.hypot(low, extra)),
        high_ns=time_ns * math.exp(math.hypot(high, extra)),
    )


def _ranks_per_node(job: MeasuredJob) -> int | None:
    return None if job.nodes is None else -(-job.ranks // job.nodes)


def _other_links(job: MeasuredJob, links: Links, ranks: int) -> bool:
    """Whether ``ranks`` ranks would talk over links that the job did not use."""
    node = links.gpus_per_node or _ranks_per_node(job) or 8
    several = -(-ranks // node) > 1
    before = (job.nodes or -(-job.ranks // node)) > 1
    return several != before or links.pcie or (several and links.fabric is not None)


def _place_assumptions(job: MeasuredJob, links: Links) -> tuple[str, ...]:
    """Say what is assumed of nodes and network."""
    per_node = links.gpus_per_node or _ranks_per_node(job)
    notes = (
        [] if per_node else ["the traces do not say how many GPUs one node has: what is usual for the GPU is assumed"]
    )
    if links.fabric is None:
        notes.append("between nodes: the network that is usual for the GPU is assumed (--network names another)")
    return tuple(notes)


def _table_prices(job: MeasuredJob, gpu: str, links: Links) -> Callable[[str, int, int], Price]:
    """Return the prices that the hardware's tables give."""
    entry = known_gpu(gpu)
    if links.pcie:
        entry = replace(entry, link=None)

    @cache
    def of(op: str, size_bytes: int, ranks: int) -> Price:
        """Return the price of a call by the tables."""
        return predict_collective(
            op,
            size_bytes,
            n_gpus=ranks,
            gpu=entry,
            gpus_per_node=links.gpus_per_node or _ranks_per_node(job),
            inter_node=links.fabric,
            adapters_per_node=links.adapters,
            dtype="uint8",  # of bytes alone: sizes are whole numbers of them
        )

    return of


def _of_job(job: MeasuredJob, here: Callable[[str, int], Price] | None) -> Callable[[str, int, int], Price] | None:
    """The tables for the links that the job used: of a card whose bridge is sold apart, those nearer to its transfers."""
    if job.gpu is None:
        return None
    ways = [_table_prices(job, job.gpu, Links())]
    link = known_gpu(job.gpu).link
    if here is None or link is None or not link.optional:
        return ways[0]
    ways.append(_table_prices(job, job.gpu, Links(pcie=True)))
    return min(ways, key=lambda way: abs(math.log(_own_over_table(job, here, way) or 1.0)))


def _own_line_prices(job: MeasuredJob) -> Callable[[str, int], Price] | None:
    """Fit a line over the transfers of each collective, at the job's own ranks; None where transfers were not measured."""
    seen: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for call in job.calls:
        if call.time_ns is None:
            return None
        seen[call.op].append((call.size_bytes, call.time_ns))
    lines = {op: relative_line(*zip(*points, strict=True)) for op, points in seen.items()}

    def of(op: str, size_bytes: int) -> Price:
        latency, per_byte, spread = lines[op]
        time = latency + per_byte * size_bytes
        reach = math.exp(max(Z80 * spread, 0.02))
        return Price(time_ns=time, low_ns=time / reach, high_ns=time * reach)

    return of


def _replay_prices(job: MeasuredJob, table: Callable[[str, int, int], Price] | None) -> Callable[[str, int], Price]:
    """Prices in the proportions of the tables (or of bytes on the wire) at which the replay takes the measured step."""

    def shape(op: str, size_bytes: int) -> float:
        if table is not None:
            return table(op, size_bytes, job.ranks).time_ns
        return size_bytes * usual_cost(op, job.backend).wire_factor(job.ranks)  # 1 ns a byte

    def step(factor: float) -> float:
        return replayed(job, lambda op, size, _: factor * shape(op, size)).step_ns

    if step(0.0) >= job.step_ns * 0.98:
        raise _no_price_error(job, why="the step hides all its communication, so it does not show how fast it was")
    low, high = -25.0, 25.0  # of log(factor)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if step(math.exp(middle)) < job.step_ns else (low, middle)
    factor = math.exp((low + high) / 2)

    def of(op: str, size_bytes: int) -> Price:
        time = factor * shape(op, size_bytes)
        return Price(time_ns=time, low_ns=time / 1.2, high_ns=time * 1.2)

    return of


def _own_over_table(
    job: MeasuredJob, here: Callable[[str, int], Price], table: Callable[[str, int, int], Price] | None
) -> float | None:
    """Return the job's transfers / what the tables say for the same; None without tables."""
    if table is None:
        return None
    ours = sum(here(c.op, c.size_bytes).time_ns for c in job.calls)
    theirs = sum(table(c.op, c.size_bytes, job.ranks).time_ns for c in job.calls)
    return ours / theirs if ours and theirs else None


def _scaled_price(job: MeasuredJob, own: Price, op: str, size_bytes: int, ranks: int) -> Price:
    """Scale ``own`` to ``ranks`` by the bytes on the wire of the backend's own algorithm: without tables nothing tells
    latency from transfer."""
    cost = usual_cost(op, job.backend)
    if not (COLLECTIVES.load(op).has_payload and size_bytes):
        ratio = cost.steps(ranks) / max(1, cost.steps(job.ranks))
    else:
        ratio = cost.wire_factor(ranks) / cost.wire_factor(job.ranks)
    return _price_with_spread(own.time_ns * ratio, own, world_spread(ranks, job.ranks))


def _no_price_error(job: MeasuredJob, *, why: str) -> UsageError:
    return UsageError(
        f"{job.name}: nothing shows what its collectives cost",
        why=why,
        fix="stepscope comm -o COMM, stepscope calibrate COMM, then --calib COMM/calib.json",
    )
