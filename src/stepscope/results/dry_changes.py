"""What would make a dry run's step faster, or smaller: each change carried out or priced before it is named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from stepscope.core.dataclass import record
from stepscope.core.units import format_bytes_binary
from stepscope.records.dry_run import MEMORY_KINDS, DryOperator, DryRank
from stepscope.records.prediction import DryStep
from stepscope.results.dry_job import DryJob, speed

WORTH = 0.01
"""Least gain of speed that is told."""
MOST = 3
EXPOSED = 0.05
"""Least exposed communication, share of the step, that is worth another run."""
FITS = ("too large", "tight", "fits")
ACCUMULATED = 1.5
"""Bytes of gradients that DDP sends in a step over those of the model in FP32, from which on it sends each again."""
ADAM_READS, ADAM_WRITES = 4, 3
"""Of parameter, gradient and two states, what one step of Adam reads and writes."""


@record
class DryChange:
    """One change on the largest world. text: what to do; how: ``run again``, or ``priced``. gain: of speed, share; None of
    what does not fit without it. makes_fit: what is too large fits, or what is tight has room."""

    text: str
    how: str
    step: DryStep
    gain: float
    makes_fit: bool = False


def dry_changes(job: DryJob) -> tuple[DryChange, ...]:
    """Return the changes that help: what makes it fit first, then the largest gains; none that does not fit itself."""
    before = job.largest
    tried = [change for change in (*_run_again(job), *_priced(job)) if change.step.memory.verdict != "too large"]
    worth = [change for change in tried if change.makes_fit or change.gain >= WORTH]
    return tuple(sorted(worth, key=lambda change: (not change.makes_fit, -change.gain)))[:MOST] if before else ()


def worth_trying(job: DryJob) -> tuple[dict[str, str], ...]:
    """Return what of the wrappers is worth another run on the largest world: what may hide communication, or make it fit."""
    step, ranks = job.largest, job.worlds[job.largest.ranks]
    exposed = step.exposed_ns >= EXPOSED * step.step_ns
    sharded = any("fsdp2" in rank.wrappers for rank in ranks)
    recomputes = any(row.recomputed for rank in ranks for row in rank.operators)
    fits, ddp = step.memory.verdict == "fits", any("ddp" in rank.wrappers for rank in ranks)
    tries = {
        ("reshard", "no"): exposed and sharded and fits,
        ("bucket", str(100 << 20)): exposed and ddp,
        ("recompute", "full"): not fits and not recomputes,
        ("recompute", "no"): fits and recomputes,
        ("sync", "last"): ddp and any(map(_sends_again, ranks)),
    }
    return tuple({key: value} for (key, value), worth in tries.items() if worth)


def _sends_again(rank: DryRank) -> bool:
    """Whether DDP reduces the same gradients in several passes of a step."""
    sent = sum(call.size_bytes for call in rank.calls if call.carries == "gradients")
    return rank.micro_steps > 1 and sent >= ACCUMULATED * 4 * rank.trained


def _change_of(job: DryJob, text: str, how: str, step: DryStep) -> DryChange:
    before = job.largest
    fits = FITS.index(step.memory.verdict) > FITS.index(before.memory.verdict)
    return DryChange(text=text, how=how, step=step, gain=speed(step) / speed(before) - 1, makes_fit=fits)


def _run_again(job: DryJob) -> Iterator[DryChange]:
    """Yield what runs with the wrappers forced otherwise say."""
    for other in job.others:
        if job.largest.ranks in other.steps:
            text = ", ".join(forced_words(key, value) for key, value in other.run.changes.items())
            yield _change_of(job, text, "run again", other.steps[job.largest.ranks])


def forced_words(key: str, value: str) -> str:
    """Say in the script's terms what a run had forced."""
    if key == "bucket":
        return f"DDP(bucket_cap_mb={int(value) / 2**20:g}): buckets of {format_bytes_binary(int(value))}"
    if key == "reshard":
        kept = "False): parameters stay whole until the backward pass" if value == "no" else "True)"
        return f"fully_shard(..., reshard_after_forward={kept}"
    if key == "sync":
        return "DDP.no_sync() in all but the last pass of a step: gradients are reduced once"
    if value == "no":
        return "no torch.utils.checkpoint: activations are kept"
    return "torch.utils.checkpoint around each block: activations are computed again"


def _priced(job: DryJob) -> Iterator[DryChange]:
    """Yield what the recorded operators say otherwise priced: of the host, nothing was measured otherwise."""
    if job.profile is not None:
        return
    world = job.largest.ranks
    if not any(rank.compiled for rank in job.worlds[world]):
        yield _change_of(job, "torch.compile(model)", "priced", replace(job, compiled=True).priced(world))
    fused = tuple(_with_fused_adam(rank) for rank in job.ranks)
    if fused != job.ranks:
        step = replace(job, ranks=fused).priced(world)
        yield _change_of(job, f"{job.worlds[world][0].optimizer}(..., fused=True)", "priced", step)


def _with_fused_adam(rank: DryRank) -> DryRank:
    """Return the rank with one kernel for its optimizer's step; as it is, where it is not Adam, or has one already."""
    fused = any("_fused_" in row.op for row in rank.operators)
    places = [at for at, index in enumerate(rank.order) if rank.operators[index].phase == "optimizer"]
    if rank.optimizer not in ("Adam", "AdamW") or fused or not places:
        return rank
    state = rank.memory.peak[MEMORY_KINDS.index("optimizer")] // 2
    kernel = DryOperator(
        op="aten._fused_adamw_.default", shapes=(), dtypes=("float32",), out_shapes=(), out_dtypes=(), flop=0,
        read_bytes=ADAM_READS * state, written_bytes=ADAM_WRITES * state, phase="optimizer",
    )  # fmt: skip
    dropped = set(places)
    last = places[-1]
    order, moved, left = [], [], 0
    for place, index in enumerate(rank.order):
        moved.append(left)
        if place == last:
            order.append(len(rank.operators))
            left += 1
        elif place not in dropped:
            order.append(index)
            left += 1
    moved.append(left)
    calls = tuple(
        replace(
            call,
            at=moved[call.at],
            after=None if call.after is None else moved[call.after],
            waited=None if call.waited is None else moved[call.waited],
        )
        for call in rank.calls
    )
    return replace(rank, operators=(*rank.operators, kernel), order=tuple(order), calls=calls)
