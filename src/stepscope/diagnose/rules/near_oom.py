"""A job ran out of memory, or its peak is close to the capacity: a longer sequence or more fragmentation ends it.

What
----
Runs and failed requests of a memory snapshot that ran out of memory, one finding a model, with what fits beside them; and
the peak bytes of a run, or reserved bytes of a snapshot, close to the capacity: of the device (never of the allocator's
pool), on CPUs of the host for all its ranks together. Of cells of `stepscope bench` the strategy's plan says what the
training state alone takes. Remedies are ordered by cost; of a snapshot, those are left out that free a kind of memory
which holds next to nothing. Of a dry run, what the script would hold on each number of GPUs, by kind and by line.

Why
---
Jobs run out of memory hours into a run, at the longest batch. The memory above the peak must also hold the CUDA
context, NCCL's buffers and fragments, which torch's peak does not include.

Known problems
--------------
Without a record of the device, its capacity is what drivers usually report for it, 1% more or less; as marketed, where
that is unknown. A run whose peak is above that ran on another device and is not judged. The plan of a cell leaves out most
activations, which depend on the micro-batch and the sequence length.

References
----------
docs/reference/metrics.md, Memory; Rajbhandari et al., ZeRO, SC 2020 (bytes per parameter; what sharding saves and
costs); Chen et al., Training deep nets with sublinear memory cost, 2016 (recomputation); PyTorch documentation, CUDA
semantics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from stepscope.core.dataclass import dataclass
from stepscope.core.errors import StepscopeError, Unavailable
from stepscope.core.units import format_bytes_binary, format_percent
from stepscope.core.words import counted, grouped, listed
from stepscope.diagnose.commands import again
from stepscope.diagnose.job_facts import facts_of_run
from stepscope.diagnose.rule import Advices, Finding, Limit, Rule, Statement, finding
from stepscope.machine.peaks import find
from stepscope.records.imported import ACTIVATION, GRADIENT, OPTIMIZER, PARAMETER, TEMPORARY, UNKNOWN, MemorySnapshot
from stepscope.records.training import TrainingRun
from stepscope.results.cell_facts import NEAR_CAPACITY, capacity_of, device_capacity, memory_share
from stepscope.results.epochs import setting
from stepscope.results.evidence import CellEvidence, Evidence, cell_of, name_of

MOST_SHARE = Limit(
    NEAR_CAPACITY,
    unit="of the capacity",
    source="CUDA context and NCCL buffers take 0.5 to 3 GB beside the pool, 2 to 8% of 40 and 80 GB devices, and "
    "fragments take more",
)
WORTH_FREEING = Limit(
    0.1, unit="of the peak", source="sparing all of a kind that holds less makes no room for a larger request"
)
_OUT = ("oom", "host_oom")


@dataclass(frozen=True, kw_only=True)
class _Job:
    """A run or snapshot, and what its remedies depend on.

    capacity: bytes that its ranks may take, and who says so; driver: it is not the table's. kinds: shares of what is held,
    where a snapshot knows them. host: the memory is the host's.
    """

    name: str
    capacity: tuple[int, str] | None
    driver: bool
    run: TrainingRun | None = None
    cell: CellEvidence | None = None
    kinds: Mapping[str, float] | None = None
    host: bool = False

    def holds(self, *kinds: str) -> bool:
        return not self.kinds or sum(self.kinds.get(kind, 0.0) for kind in (*kinds, UNKNOWN)) >= WORTH_FREEING

    @cached_property
    def state_bytes(self) -> int | None:
        """Bytes that one rank holds beside activations, by the plan of a cell's strategy."""
        if self.cell is None:
            return None
        from stepscope.predict.specs import specs_of  # only cells have a spec

        try:
            specs = specs_of(self.cell.result.spec)
        except (StepscopeError, ValueError):
            return None
        return specs.strategy.memory_plan(specs.facts, specs.setting, specs.strategy_options).total_bytes

    @property
    def capacity_text(self) -> str:
        return "" if self.capacity is None else format_bytes_binary(self.capacity[0])

    @property
    def too_large(self) -> bool:
        """Whether the state alone does not fit: what frees activations does not help."""
        return self.state_bytes is not None and self.capacity is not None and self.state_bytes > self.capacity[0]


def check(evidence: Evidence) -> Statement:
    """Look for: memory ran out, or nearly did."""
    jobs = [_run_job(evidence, run) for run in evidence.runs]
    findings = [*_failed_run_findings(evidence, jobs), *_failed_requests(evidence), *_dry_findings(evidence)]
    peaks = sorted(_peak_shares(evidence, jobs), key=lambda peak: -peak[0])
    if near := [peak for peak in peaks if peak[0] >= MOST_SHARE]:
        findings.append(_near_finding(evidence, *near))
    if findings:
        return findings
    if (dry := next((job for job in evidence.dry if job.worlds), None)) is not None:
        from stepscope.diagnose.dry_findings import memory_words

        return memory_words(dry)
    for share, _, job in peaks[:1]:
        return f"{job.name}: {format_percent(share)} of {job.capacity_text}, limit {format_percent(MOST_SHARE)}"
    return RULE.blind


def _dry_findings(evidence: Evidence) -> Iterator[Finding]:
    """Yield the finding of each script that would not fit, or nearly not."""
    if not evidence.dry:
        return
    from stepscope.diagnose.dry_findings import memory_finding

    for job in evidence.dry:
        if job.worlds and (of_job := memory_finding(job)) is not None:
            yield of_job


def _run_job(evidence: Evidence, run: TrainingRun) -> _Job:
    """Return a run as a job with its capacity, bytes, and what says so."""
    cell = cell_of(evidence, run)
    if cell is None:
        capacity = _of_name(run.hardware)
    else:
        total = capacity_of(cell, evidence.environment)
        capacity = None if total is None else (total, "the host" if cell.spec.device == "cpu" else "the driver")
    host = run.device == "cpu" or run.status == "host_oom"
    return _Job(name=name_of(run), capacity=capacity, driver=cell is not None, run=run, cell=cell, host=host)


def _of_name(name: str | None) -> tuple[int, str] | None:
    device = find(name) if name else Unavailable("no name")
    if isinstance(device, Unavailable):
        return None
    return device.total_bytes, f"usual for {device.name}; this device's driver was not asked"


def _peak_shares(evidence: Evidence, jobs: Iterable[_Job]) -> Iterator[tuple[float, int, _Job]]:
    """Yield the share of the capacity that all ranks of a host take at the peak, the peak of one, bytes, and whose it is."""
    for job in jobs:
        peak = job.run.peak_memory_bytes if job.run is not None and job.run.status == "ok" else None
        if peak is None or job.capacity is None:
            continue
        if job.cell is None and peak > job.capacity[0]:  # it ran: its device has more than the table's
            continue
        share = None if job.cell is None else memory_share(job.cell, evidence.environment)
        yield peak / job.capacity[0] if share is None else share, peak, job
    for memory in evidence.memory:
        job = _snapshot_job(evidence, memory)
        if job.capacity is not None and not memory.oom_events:
            peak = memory.segment_bytes if memory.peak_reserved_bytes is None else memory.peak_reserved_bytes
            yield peak / job.capacity[0], peak, job


def _snapshot_job(evidence: Evidence, memory: MemorySnapshot) -> _Job:
    """Return a snapshot's job: the capacity is that of a failed request, the machine's devices, or the name stated."""
    step = "" if memory.step is None else f", after {counted(memory.step, 'step')}"
    driver = device_capacity(evidence.environment)
    if memory.capacity_bytes is not None:
        capacity: tuple[int, str] | None = memory.capacity_bytes, "stated by the failed request"
    elif driver is not None:
        capacity = driver, "the driver"
    else:
        capacity = _of_name(evidence.hardware[0]) if len(evidence.hardware) == 1 else None
    by_driver = memory.capacity_bytes is not None or driver is not None
    return _Job(name=f"{memory.name}{step}", capacity=capacity, driver=by_driver)


def _failed_run_findings(evidence: Evidence, jobs: Sequence[_Job]) -> Iterator[Finding]:
    """Yield one finding a model, of the run that needs least; not of logs that say more of it, which job-end reads."""
    runs = [(job, job.run) for job in jobs if job.run is not None]
    read_elsewhere = {sign.source for sign in evidence.signs if sign.kind in ("oom", "host-oom")}
    failed = (
        pair for pair in runs if pair[1].status in _OUT and pair[1].source.rpartition(":")[0] not in read_elsewhere
    )
    for group in grouped(failed, lambda pair: pair[1].group).values():
        job, run = min(group, key=lambda pair: (pair[1].micro_batch or 0, pair[1].num_parameters or 0))
        state, capacity = job.state_bytes, job.capacity_text
        of = f" of {capacity}" if capacity else ""
        fits = [
            other
            for _, other in runs
            if (other.group, other.world_size, other.status) == (run.group, run.world_size, "ok")
        ]
        largest = max(fits, key=lambda other: (other.micro_batch or 0, other.peak_memory_bytes or 0), default=None)
        peak = largest and largest.peak_memory_bytes
        yield finding(
            f"out of {'host' if job.host else 'GPU'} memory: {counted(len(group), 'run')} of {run.group}",
            f"{_with_batch(run)}: {run.error or 'ended out of memory'}",
            state is not None and f"parameters, gradients and optimizer alone: {format_bytes_binary(state)}{of} a rank",
            state is None and job.capacity is not None and f"capacity {capacity} ({job.capacity[1]})",
            len(group) > 1 and f"{len(group)} runs of this model ran out of memory; this run needs the least",
            largest is not None
            and f"{_with_batch(largest)} fits" + (f", peak {format_bytes_binary(peak)}" if peak else ""),
            severity="problem",
            confidence="certain: the run failed",
            priority="failure",
            advice=_memory_advice(evidence, job),
            of=job.name,
            runs=tuple(failed.run_id for _, failed in group),
        )


def _with_batch(run: TrainingRun) -> str:
    return run.label if run.micro_batch is None else f"{run.label}, micro-batch {run.micro_batch}"


def _failed_requests(evidence: Evidence) -> Iterator[Finding]:
    """Yield one finding for the ranks of a job, of the fullest one: the others fail with it."""
    failed = [memory for memory in evidence.memory if memory.oom_events and memory.oom_request_bytes is not None]
    if not failed:
        return
    memory = max(failed, key=lambda snapshot: snapshot.allocated_bytes)
    by_kind = memory.peak_kinds or memory.kinds
    whole = sum(size for _, size in by_kind)
    kinds = {kind: size / whole for kind, size in sorted(by_kind, key=lambda pair: -pair[1])}
    job = replace(_snapshot_job(evidence, memory), kinds=kinds)
    free, wanted = memory.oom_driver_free_bytes, format_bytes_binary(memory.oom_request_bytes or 0)
    left = "" if free is None else f" with {format_bytes_binary(free)} left in the driver"
    capacity = f" of {format_bytes_binary(memory.capacity_bytes)}" if memory.capacity_bytes else ""
    sizes = dict(by_kind)
    shares = ", ".join(f"{k} {format_bytes_binary(sizes[k])} ({format_percent(share)})" for k, share in kinds.items())
    others = [_snapshot_job(evidence, snapshot).name for snapshot in failed if snapshot is not memory]
    yield finding(
        f"{counted(memory.oom_events, 'request')} failed: {wanted} wanted{left}",
        f"reserved {format_bytes_binary(memory.segment_bytes)}{capacity}, in use "
        f"{format_bytes_binary(memory.allocated_bytes)}",
        shares and f"at the peak: {shares}",
        [
            f"{format_bytes_binary(h.size_bytes)} of {h.kind} held at {h.where}"
            for h in (memory.peak_holders or memory.holders)[:3]
        ],
        bool(others) and f"out of memory too: {listed(others, at_most=4)}",
        severity="problem",
        confidence="certain: recorded by the allocator",
        priority="failure",
        advice=_memory_advice(evidence, job),
        of=job.name,
    )


def _near_finding(evidence: Evidence, worst: tuple[float, int, _Job], *others: tuple[float, int, _Job]) -> Finding:
    """Return the finding of a peak near the capacity."""
    share, peak, job = worst
    source = "" if job.capacity is None else job.capacity[1]
    several = job.host and job.run is not None and (job.run.world_size or 1) > 1
    return finding(
        f"{job.name}: the peak takes {format_percent(share)} of the {'host' if job.host else 'device'}'s memory",
        f"peak {format_bytes_binary(peak)} a rank, of {job.capacity_text}"
        f"{' for all ranks of the host' if several else ''} ({source})",
        job.state_bytes is not None
        and f"parameters, gradients and optimizer alone: {format_bytes_binary(job.state_bytes)}",
        [f"{other.name}: {format_percent(less)}" for less, _, other in others[:3]],
        confidence="measured" if job.driver else "likely: the table's capacity, not that of this device's driver",
        advice=_memory_advice(evidence, job),
        of=job.run or job.name,
    )


def _memory_advice(evidence: Evidence, job: _Job) -> Iterator[Advices]:
    """Yield advice, cheapest first, without what the run does already and what frees a kind that holds next to nothing."""
    run, cell = job.run, job.cell
    if cell is None:  # bench does so
        first = "no cost: set gradients to None, keep no tensor for logging (loss.item())"
        grow = "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        yield (
            f"{first}, fewer data workers with smaller queues"
            if job.host
            else (f"{first}, segments that grow in place", grow)
        )
    batch = None if run is None else run.micro_batch
    if (batch is None or batch > 1) and not job.too_large and job.holds(ACTIVATION, TEMPORARY):
        half = "" if batch is None else f" ({batch // 2} instead of {batch})"
        yield (
            f"low cost: halve the micro-batch{half} and double the accumulation, same global batch",
            None if cell is None else again(evidence, cell, *_halved_settings(cell)),
        )
    wide = run is None or run.precision in (None, "fp32", "tf32")
    if wide and job.holds(ACTIVATION, TEMPORARY, PARAMETER, GRADIENT):
        yield (
            "use bf16 parameters and activations, which halves both (check the loss); autocast halves activations only",
            None if cell is None else again(evidence, cell, ("precision", "bf16")),
        )
    ranks = run.world_size if run is not None else None
    replicated = run is None or (facts_of_run(run).replicated and ranks != 1)
    if replicated and job.holds(OPTIMIZER):
        n = f" from 12 to {12 / ranks:.1f} bytes a parameter" if ranks else ""
        yield f"same traffic: shard the optimizer state (ZeRO-1); with Adam it shrinks{n}"
    if job.holds(ACTIVATION) and not job.too_large and not _recomputes_already(run):
        yield "costs about a third more computation (4/3): recompute activations in the backward pass"
    if replicated and job.holds(PARAMETER, GRADIENT):
        yield "50% more traffic: shard parameters too (FSDP, ZeRO-3)"
    if not job.host and cell is None and job.holds(OPTIMIZER, ACTIVATION):
        yield "highest cost: move optimizer state or activations to the host"
    if cell is not None:
        yield f"use a {'host' if job.host else 'device'} with more memory, or a smaller model"


def _halved_settings(cell: CellEvidence) -> list[tuple[str, object]]:
    """The settings that halve the micro-batch: of a fixed global batch the accumulation alone."""
    spec = cell.spec
    batch = [("micro_batch", spec.micro_batch // 2)] if spec.batch_rule == "micro_batch" else []
    return [("accumulation", 2 * spec.accumulation), *batch]


def _recomputes_already(run: TrainingRun | None) -> bool:
    """Whether the run's settings say that it recomputes activations already."""
    names = ("activation_checkpointing", "gradient_checkpointing", "checkpoint_activations", "recompute_granularity")
    value = None if run is None else setting(run.settings, *names)
    return value is not None and str(value).lower() not in ("false", "none", "no", "0", "selective", "")


RULE = Rule(
    symptom="memory ran out, or nearly did",
    sees=("cells", "runs", "memory", "dry"),
    unseen="no run or snapshot has both a peak and a device or host of known capacity",
    look=check,
    looks_at="cells, runs of other tools, memory, dry runs",
    protocol=3,
    thresholds={"share": MOST_SHARE, "worth_freeing": WORTH_FREEING},
)
