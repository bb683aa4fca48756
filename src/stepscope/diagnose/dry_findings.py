"""What rules say of a dry run: memory that does not fit, communication that nothing hides, a host that is too slow."""

from __future__ import annotations

import shlex

from stepscope.core.units import format_bytes, format_bytes_binary, format_duration, format_percent
from stepscope.core.words import listed
from stepscope.diagnose.dry_words import gpu_name
from stepscope.diagnose.rule import Limit, Statement, finding
from stepscope.predict.step.calibration import MEMORY_LIMIT
from stepscope.records.dry_run import DryRank
from stepscope.records.finding import Finding
from stepscope.records.nouns import EXPOSED_COMM
from stepscope.records.prediction import DryStep
from stepscope.results.dry_changes import dry_changes
from stepscope.results.dry_job import DryJob, is_logits, weightiest, what_and_where

COUNTED = "likely: bytes are counted; context, libraries and fragmentation are those of published runs"
PRICED = "likely: operators, calls and bytes are exact, times are modelled"
MOST_KINDS = 4


def memory_finding(job: DryJob) -> Finding | None:
    """Return the finding of the world that needs most of its device; None where all fit."""
    step = max(job.steps.values(), key=lambda step: step.memory.needs_bytes)
    fit = step.memory
    if fit.verdict == "fits":
        return None
    rank = job.fullest(step.ranks)
    kinds = sorted(fit.by_kind.items(), key=lambda item: -item[1])
    largest = weightiest(rank)
    others = [
        f"{world} GPUs {format_bytes(one.memory.needs_bytes)}" for world, one in job.steps.items() if one is not step
    ]
    words = "does not fit" if fit.verdict == "too large" else "is tight"
    return finding(
        f"{job.name} {words} on {step.ranks} x {gpu_name(step)}: {format_bytes(fit.needs_bytes)} of "
        f"{format_bytes(fit.device_bytes)}",
        f"at the peak: {listed([f'{kind} {format_bytes(size)}' for kind, size in kinds if size], at_most=MOST_KINDS)}",
        largest is not None and f"largest: {what_and_where(largest, rank)}, {format_bytes(largest.size_bytes)}",
        rank.memory.peak_place is not None and f"the peak is at {rank.memory.peak_place}",
        bool(others) and f"on other numbers: {listed(others)}",
        severity="problem" if fit.verdict == "too large" else "warning",
        confidence=COUNTED,
        advice=_memory_advice(job, rank),
        of=job.name,
    )


def memory_words(job: DryJob) -> str:
    """Say how much of its device the largest world takes."""
    fit = job.largest.memory
    share = format_percent(fit.needs_bytes / fit.device_bytes)
    return f"{job.name}: {share} of {format_bytes(fit.device_bytes)}, limit {format_percent(MEMORY_LIMIT)}"


def _memory_advice(job: DryJob, rank: DryRank) -> list[str | tuple[str, str | None]]:
    """Advise what makes it fit, the cheapest first: what was tried has its numbers."""
    advice: list[str | tuple[str, str | None]] = []
    largest = weightiest(rank)
    if largest is not None and is_logits(largest, rank):
        wide = sum(one.size_bytes for one in rank.memory.at_peak if is_logits(one, rank))
        advice.append(
            f"chunk the loss: compute output and loss for some tokens at a time; {format_bytes(wide)} of the peak is that"
        )
    tried = [change for change in dry_changes(job) if change.makes_fit]
    advice += [
        f"{change.text}: {format_bytes(change.step.memory.needs_bytes)}, {change.gain:+.0%} speed" for change in tried
    ]
    if not tried and not any(row.recomputed for row in rank.operators):
        again = f"stepscope predict {_machine_options(job)} --what-if recompute=full -- {job.line}"
        advice.append(("recompute activations in the backward pass", again))
    advice.append("a smaller micro-batch, by the script's own option, with more accumulation")
    if rank.memory.peak and "ddp" in rank.wrappers:
        advice.append("shard parameters, gradients and optimizer state: FSDP in place of DDP")
    return advice


def _machine_options(job: DryJob) -> str:
    run = job.run
    given = {"--gpus": ",".join(map(str, job.worlds)), "--gpu": run.gpu, "--network": run.network}
    return shlex.join(word for name, value in given.items() if value for word in (name, value))


def communication_statement(job: DryJob, *, limit: float, small: Limit) -> Statement:
    """Return the finding of exposed communication on the largest world, or how much there is."""
    step = job.largest
    share = step.exposed_ns / step.step_ns
    if share < limit:
        return f"{job.name}: {format_percent(share)} of the step, limit {format_percent(limit)}"
    first = step.traffic[0]
    mean = first.size_bytes / first.calls
    where = f"over {first.domains} nodes" if first.domains > 1 else "in a node"
    tiny = mean <= small
    by_run = [f"{change.text}: {change.gain:+.0%} speed" for change in dry_changes(job) if change.how == "run again"]
    return finding(
        f"{EXPOSED_COMM}: {format_percent(share)} of the step on {step.ranks} GPUs",
        f"exposed {format_duration(step.exposed_ns)} of {format_duration(step.comm_ns)} of communication",
        f"most time: {first.calls} {first.op} among {first.ranks} ranks {where}, {format_bytes_binary(mean)} each, "
        f"{format_duration(first.time_ns)} alone",
        tiny and f"messages of at most {small} take their start-up alone",
        cause="small messages" if tiny else "",
        stake=share,
        confidence=PRICED,
        advice=[
            *by_run,
            *(["send fewer, larger messages: larger buckets, larger units"] if tiny else []),
            *_sending_less(step, job.fullest(step.ranks)),
        ],
        of=job.name,
    )


def _sending_less(step: DryStep, rank: DryRank) -> list[str]:
    """Advise what makes the largest traffic smaller."""
    if step.traffic[0].op in ("all_gather", "reduce_scatter") and step.traffic[0].domains > 1:
        return ["shard within a node and replicate between nodes (HSDP): gathers stay in the node"]
    if "ddp" in rank.wrappers:
        return ["reduce less often: more accumulation, with no_sync() in all micro-steps but the last"]
    return ["give a rank more work for each byte: a larger micro-batch, more accumulation"]


def host_statement(job: DryJob, *, limit: float) -> Statement:
    """Return the finding of a device that waits for its host on the largest world, or how much it does."""
    step, rank = job.largest, job.fullest(job.largest.ranks)
    if step.host_share < limit:
        return f"{job.name}: {format_percent(step.host_share)} of the step, limit {format_percent(limit)}"
    kernels = sum(row.launches for row in step.kernels)
    tried = [f"{change.text}: {change.gain:+.0%} speed" for change in dry_changes(job) if change.how == "priced"]
    return finding(
        f"launch-bound: the device waits {format_percent(step.host_share)} of the step for the host on {step.ranks} GPUs",
        f"{kernels:,} kernels of {len(rank.order):,} operators, {format_duration(step.step_ns / max(1, kernels))} a kernel",
        stake=step.host_share,
        confidence=PRICED,
        advice=[*tried, "a larger micro-batch gives each launch more work"],
        of=job.name,
    )
