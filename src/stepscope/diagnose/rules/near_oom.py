"""The peak is close to the device's capacity: a longer sequence or more fragmentation ends the job.

What
----
Compares the peak bytes of a run, and the peak reserved bytes of a memory snapshot, with the capacity of the device,
never with the allocator's pool; reports runs that ran out of memory. `memory-peak` judges cells of `stepscope bench`,
whose plan it knows. Remedies are ordered by cost; of a snapshot, those are left out that free a kind of memory which
holds next to nothing.

Why
---
Jobs run out of memory hours into a run, at the longest batch. The memory above the peak must also hold the CUDA
context, NCCL's buffers and fragments, which torch's peak does not include.

Known problems
--------------
The accelerator table has the marketed capacity; the driver's is a few per cent larger or smaller. Without the device's
name the rule is quiet.

References
----------
docs/reference/metrics.md, Memory; Rajbhandari et al., ZeRO, SC 2020 (what sharding saves and costs); Chen et al.,
Training deep nets with sublinear memory cost, 2016 (recomputation); PyTorch documentation, CUDA semantics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stepscope.core.errors import Unavailable
from stepscope.core.units import format_bytes_binary, format_percent
from stepscope.core.words import counted, listed
from stepscope.diagnose.outcome import Said
from stepscope.diagnose.rule import Rule, Threshold
from stepscope.hardware import find
from stepscope.records.finding import Advice, Finding, Severity, Skipped
from stepscope.records.memory_snapshot import (
    ACTIVATION,
    GRADIENT,
    OPTIMIZER,
    PARAMETER,
    TEMPORARY,
    UNKNOWN,
    MemoryHolder,
    MemorySnapshot,
)
from stepscope.records.training import TrainingRun
from stepscope.results.evidence import Evidence
from stepscope.results.figures import setting
from stepscope.results.scaling import shards

MOST_SHARE = Threshold(
    value=0.90,
    unit="of the device's capacity",
    source="CUDA context and NCCL buffers take 1 to 3 GB beside the pool, 2 to 8% of 40 and 80 GB devices, and "
    "fragments take more",
)
WORTH_FREEING = Threshold(
    value=0.1, unit="of the peak", source="sparing all of a kind that holds less makes no room for a larger request"
)
_RECOMPUTE = "about a third more computation (4/3)"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Full:
    """peak over capacity of one run or snapshot. source: where the capacity is from."""

    name: str
    peak_bytes: int
    capacity_bytes: int
    source: str
    run: TrainingRun | None

    @property
    def share(self) -> float:
        return self.peak_bytes / self.capacity_bytes


def check(evidence: Evidence) -> Said:
    runs = _foreign(evidence)
    failed = [run for run in runs if run.status in ("oom", "host_oom")]
    known = [*_runs(runs), *_snapshots(evidence)]
    near = sorted((each for each in known if each.share >= MOST_SHARE.value), key=lambda each: -each.share)
    found = [*(_failed(evidence, run) for run in failed)]
    found += [_near(near[0], near[1:])] if near else []
    found += _failed_requests(evidence)
    if found:
        return tuple(found)
    if known:
        worst = max(known, key=lambda each: each.share)
        return (
            f"{worst.name}: {format_percent(worst.share)} of {format_bytes_binary(worst.capacity_bytes)}, limit "
            f"{format_percent(MOST_SHARE.value)}"
        )
    return Skipped(
        reason="no run or snapshot has both a peak and a device of known capacity"
        + ("; memory-peak judges cells of bench" if evidence.cells else "")
    )


def _failed_requests(evidence: Evidence) -> Iterable[Finding]:
    """One finding for the ranks of a job, of the fullest one: the others fail with it."""
    failed = [memory for memory in evidence.memory if memory.oom_events and memory.oom_request_bytes is not None]
    if not failed:
        return
    memory = max(failed, key=lambda each: each.allocated_bytes)
    free, wanted = memory.oom_driver_free_bytes, format_bytes_binary(memory.oom_request_bytes or 0)
    left = "" if free is None else f" with {format_bytes_binary(free)} left in the driver"
    capacity = f" of {format_bytes_binary(memory.capacity_bytes)}" if memory.capacity_bytes else ""
    held = [f"{kind} {format_bytes_binary(size)} ({format_percent(share)})" for kind, size, share in _kinds(memory)]
    others = [_name(each) for each in failed if each is not memory]
    said = [
        f"reserved {format_bytes_binary(memory.segment_bytes)}{capacity}, in use "
        f"{format_bytes_binary(memory.allocated_bytes)}",
        *([f"at the peak: {', '.join(held)}"] if held else []),
        *_largest(memory.peak_holders or memory.holders),
        *([f"out of memory too: {listed(others, at_most=4)}"] if others else []),
    ]
    yield _finding(
        f"{counted(memory.oom_events, 'request')} failed: {wanted} wanted{left}",
        tuple(said),
        "certain: recorded by the allocator",
        None,
        _name(memory),
        kinds={kind: share for kind, _, share in _kinds(memory)},
    )


def _name(memory: MemorySnapshot) -> str:
    step = "" if memory.step is None else f", after {counted(memory.step, 'step')}"
    return f"{memory.name}{step}"


def _kinds(memory: MemorySnapshot) -> list[tuple[str, int, float]]:
    """Kind, bytes and share of the peak, or of what is held at the snapshot; the largest first."""
    kinds = memory.peak_kinds or memory.kinds
    whole = sum(size for _, size in kinds)
    return [(kind, size, size / whole) for kind, size in sorted(kinds, key=lambda each: -each[1])]


def _largest(holders: tuple[MemoryHolder, ...]) -> tuple[str, ...]:
    return tuple(f"{format_bytes_binary(h.size_bytes)} of {h.kind} held at {h.where}" for h in holders[:3])


def _foreign(evidence: Evidence) -> list[TrainingRun]:
    """Runs other than cells of bench: those are judged by memory-peak, which knows their plan."""
    cells = {cell.run.run_id for cell in evidence.cells}
    return [run for run in evidence.runs if run.run_id not in cells]


def _runs(runs: list[TrainingRun]) -> list[_Full]:
    found = []
    for run in runs:
        if run.status != "ok" or run.peak_memory_bytes is None:
            continue
        capacity = _of_name(run.hardware)
        if capacity is None:
            continue
        size, source = capacity
        found.append(
            _Full(
                name=f"{run.group}: {run.label}",
                peak_bytes=run.peak_memory_bytes,
                capacity_bytes=size,
                source=source,
                run=run,
            )
        )
    return found


def _snapshots(evidence: Evidence) -> list[_Full]:
    found = []
    for memory in evidence.memory:
        size, source = memory.capacity_bytes, "stated by the failed request"
        if size is None:
            known = _device_capacity(evidence)
            if known is None:
                continue
            size, source = known
        peak = memory.segment_bytes if memory.peak_reserved_bytes is None else memory.peak_reserved_bytes
        if not memory.oom_events:
            found.append(_Full(name=_name(memory), peak_bytes=peak, capacity_bytes=size, source=source, run=None))
    return found


def _device_capacity(evidence: Evidence) -> tuple[int, str] | None:
    """The smallest device of the machine, as the driver reports it; else by the name that the source states."""
    torch = evidence.environment.torch if evidence.environment is not None else None
    if torch is not None and torch.device_memory_bytes:
        return min(torch.device_memory_bytes), "the driver"
    gpus = evidence.environment.gpus if evidence.environment is not None else ()
    sizes = [gpu.memory_bytes for gpu in gpus if gpu.memory_bytes]
    if sizes:
        return min(sizes), "the driver"
    return _of_name(evidence.hardware[0]) if len(evidence.hardware) == 1 else None


def _of_name(name: str | None) -> tuple[int, str] | None:
    found = find(name) if name else Unavailable("no name")
    return None if isinstance(found, Unavailable) else (found.memory_bytes, f"marketed size of {found.name}")


def _near(worst: _Full, others: list[_Full]) -> Finding:
    said = [
        f"peak {format_bytes_binary(worst.peak_bytes)} of {format_bytes_binary(worst.capacity_bytes)} ({worst.source})"
    ]
    said += [f"{each.name}: {format_percent(each.share)}" for each in others[:3]]
    return _finding(
        f"{worst.name}: the peak takes {format_percent(worst.share)} of the device's memory",
        tuple(said),
        "measured" if "marketed" not in worst.source else "likely: the capacity is the marketed size",
        worst.run,
        worst.name,
        severity="warning",
    )


def _failed(evidence: Evidence, run: TrainingRun) -> Finding:
    capacity = _of_name(run.hardware)
    said = [run.error or "ended out of memory"]
    if capacity is not None:
        said.append(f"capacity {format_bytes_binary(capacity[0])} ({capacity[1]})")
    fits = [
        other
        for other in evidence.runs
        if other.group == run.group
        and other.status == "ok"
        and other.peak_memory_bytes
        and other.world_size == run.world_size
    ]
    if fits:
        largest = max(fits, key=lambda r: r.peak_memory_bytes or 0)
        said.append(f"{largest.label} fits, peak {format_bytes_binary(largest.peak_memory_bytes or 0)}")
    where = "host" if run.status == "host_oom" else "device"
    return _finding(
        f"{run.group}: {run.label} ran out of {where} memory",
        tuple(said),
        "certain: the run failed",
        run,
        f"{run.group}: {run.label}",
        host=run.device == "cpu" or run.status == "host_oom",
    )


def _finding(
    title: str,
    said: tuple[str, ...],
    confidence: str,
    run: TrainingRun | None,
    subject: str,
    *,
    severity: Severity = "problem",
    host: bool = False,
    kinds: Mapping[str, float] | None = None,
) -> Finding:
    return Finding(
        severity=severity,
        title=title,
        evidence=said,
        confidence=confidence,
        advice=_remedies(run, host=host, kinds=kinds or {}),
        priority="failure" if severity == "problem" else "performance",
        subject=subject,
    )


def _remedies(run: TrainingRun | None, *, host: bool, kinds: Mapping[str, float]) -> tuple[Advice, ...]:
    """Cheapest first; what the run already does, and what frees a kind that holds next to nothing, is left out."""

    def holds(*named: str) -> bool:
        return not kinds or sum(kinds.get(kind, 0.0) for kind in (*named, UNKNOWN)) >= WORTH_FREEING.value

    first = "no cost: set gradients to None, keep no tensor for logging (loss.item())"
    advice = [
        Advice(text=f"{first}, fewer data workers with smaller queues")
        if host
        else Advice(
            text=f"{first}, segments that grow in place",
            command="export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        )
    ]
    if (run is None or run.micro_batch is None or run.micro_batch > 1) and holds(ACTIVATION, TEMPORARY):
        half = f" ({run.micro_batch // 2} instead of {run.micro_batch})" if run and run.micro_batch else ""
        advice.append(
            Advice(text=f"low cost: halve the micro-batch{half} and double the accumulation, same global batch")
        )
    if (run is None or run.precision in (None, "fp32", "tf32")) and holds(ACTIVATION, TEMPORARY):
        advice.append(Advice(text="use bf16 autocast, which halves activations and often saves time"))
    ranks = run.world_size if run is not None else None
    replicated = (run is None or not shards(run.strategy)) and (ranks is None or ranks > 1)
    if replicated and holds(OPTIMIZER):
        n = f" from 12 to {12 / ranks:.1f} bytes a parameter" if ranks else ""
        advice.append(Advice(text=f"same traffic: shard the optimizer state (ZeRO-1); with Adam it shrinks{n}"))
    if holds(ACTIVATION) and not _recomputes(run):
        advice.append(Advice(text=f"costs {_RECOMPUTE}: recompute activations in the backward pass"))
    if replicated and holds(PARAMETER, GRADIENT):
        advice.append(Advice(text="50% more traffic: shard parameters too (FSDP, ZeRO-3)"))
    if not host and holds(OPTIMIZER, ACTIVATION):
        advice.append(Advice(text="highest cost: move optimizer state or activations to the host"))
    return tuple(advice)


def _recomputes(run: TrainingRun | None) -> bool:
    """Whether the run's settings say that it recomputes activations already."""
    names = ("activation_checkpointing", "gradient_checkpointing", "checkpoint_activations", "recompute_granularity")
    value = None if run is None else setting(run.settings, *names)
    return value is not None and str(value).lower() not in ("false", "none", "no", "0", "selective", "")


RULE = Rule(
    name="near-oom",
    symptom="the peak is close to the device's capacity, or above it",
    needs=(),
    look=check,
    protocol=3,
    thresholds={"share": MOST_SHARE, "worth_freeing": WORTH_FREEING},
)
