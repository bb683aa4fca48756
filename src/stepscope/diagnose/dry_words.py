"""What the first screen of a dry run says: whether it fits, what the step takes on the largest world, what limits it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from stepscope.core.units import format_bytes, format_duration, format_percent
from stepscope.core.words import counted, grouped, listed
from stepscope.machine.peaks import find
from stepscope.records.dry_run import DryFailure, DryNote
from stepscope.records.finding import Advice, VerdictPart
from stepscope.records.nouns import EXPOSED_COMM
from stepscope.records.parts import COMPUTATION, TITLES
from stepscope.records.prediction import DryStep
from stepscope.results.dry_changes import dry_changes
from stepscope.results.dry_job import DryJob, efficiency, is_logits, speed, unit_of, weightiest, what_and_where

WAITING = ("communication", "bubble", "idle", "other")
"""Parts of a step in which the device computes nothing."""
KERNEL = {
    "product": "matrix products",
    "attention": "attention",
    "memory": "memory-bound operators",
    "fused": "compiled pointwise operators",
    "copy": "copies",
    "optimizer": "the optimizer",
    "communication": EXPOSED_COMM,
    "idle": "the host, which launches operators",
    "other": "fixed time, slowest GPU",
    "bubble": "the pipeline's bubble",
}
"""Kind of kernel, or what limits a step, in words."""
PARTS = {**TITLES, "idle": "waiting for the host", "bubble": "waiting for other stages"}
"""Parts of a dry run's step in words."""
MOST_PLACES = 3
HEAVY = 0.1
"""Share of the peak from which on a change of what holds it is advised."""
_NOTES = {
    "value-read": "values that the script reads from tensors were answered",
    "value-decides": "a value that decides what the script does was answered",
    "skipped": "left out, as no part of a step",
    "loader": "batches have the loader's shapes",
    "experts": "what a router chooses was taken to be even",
    "pipeline": "shapes that a stage sends were taken to be those that another sends",
    "compile": "torch.compile: run eagerly, priced as fused; graph breaks and recompilations are not simulated",
}
"""Code of a note -> what happened there."""


def headline(job: DryJob) -> str:
    """Say whether it fits, how fast it is: one sentence on the largest world."""
    step = job.largest
    where = f"{step.ranks} x {gpu_name(step)}" if step.unit == "GPU" else counted(step.ranks, "rank")
    return f"{job.name} on {where}: {fit_words(job)}; {time_words(step)}"


def gpu_name(step: DryStep) -> str:
    gpu = find(step.gpu)
    return getattr(gpu, "name", step.gpu)


def fit_words(job: DryJob) -> str:
    """Say whether it fits: ``fits, 38.2 GB of 85.0``; what does not, with the line that makes it so."""
    fit = job.largest.memory
    amount = f"{format_bytes(fit.needs_bytes)} of {format_bytes(fit.device_bytes)}"
    if fit.verdict != "too large":
        return f"{fit.verdict}, {amount}"
    rank = job.fullest(job.largest.ranks)
    largest = weightiest(rank)
    what = "" if largest is None else f": {what_and_where(largest, rank)} take {format_bytes(largest.size_bytes)}"
    return f"does not fit, {amount}{what}"


def time_words(step: DryStep) -> str:
    """Say what the step takes, and what that is in a second."""
    one = "if it did, " if step.memory.verdict == "too large" else ""
    mfu = "" if step.mfu is None else f", MFU {format_percent(step.mfu)} ({step.precision})"
    return f"{one}{speed(step):,.0f} {unit_of([step])}/s, step {format_duration(step.step_ns)}{mfu}"


def tone(step: DryStep) -> Literal["problem", "warning", "good"]:
    if step.memory.verdict == "too large":
        return "problem"
    return "warning" if step.memory.verdict == "tight" or step.limit in WAITING else "good"


def tree(step: DryStep) -> tuple[VerdictPart, ...]:
    """Return the parts of the step that take time: those of one level sum to the one above."""

    def part(key: str, ns: float, inner: Iterable[VerdictPart] = ()) -> VerdictPart:
        return VerdictPart(
            key=PARTS[key] if key in ("idle", "bubble") else key,
            ns=ns,
            share=ns / step.step_ns,
            parts=tuple(inner),
            cause=key == step.limit,
        )

    inner = [part(key, ns) for key in COMPUTATION if (ns := step.parts.get(key, 0.0)) > 0]
    rest = [part(key, ns) for key in WAITING if (ns := step.parts.get(key, 0.0)) > 0]
    return (part("computation", sum(one.ns for one in inner), inner), *rest)


def also(job: DryJob) -> Iterator[str]:
    steps = list(job.steps.values())
    if len(steps) > 1:
        share = format_percent(efficiency(steps[-1], steps[0]))
        one = "a GPU" if steps[0].unit == "GPU" else "a rank"
        yield f"{one} of {steps[-1].ranks} is {share} as fast as one of {steps[0].ranks}"
    unfit = [str(step.ranks) for step in steps[:-1] if step.memory.verdict == "too large"]
    if unfit:
        yield f"does not fit on {listed(unfit)} GPUs"
    for failure in job.run.failures:
        yield f"{counted(failure.world_size, 'GPU')}: {failure_words(failure)}"


def failure_words(failure: DryFailure) -> str:
    """Say why a world has no step, with the script's line."""
    return failure.text + (f" ({failure.place})" if failure.place else "")


def reasons(job: DryJob) -> Iterator[str]:
    step = job.largest
    share = format_percent(limit_ns(step) / step.step_ns)
    recomputes = any(row.recomputed for rank in job.worlds[step.ranks] for row in rank.operators)
    hfu = "" if step.hfu is None else f"HFU {format_percent(step.hfu)}: "
    again = f"; {hfu}activations are computed again" if recomputes else ""
    yield f"limited by {KERNEL.get(step.limit, step.limit)}, {share} of the step{again}"
    if step.comm_ns:
        hidden = max(0.0, 1 - step.exposed_ns / step.comm_ns)
        first = step.traffic[0]
        node = "in a node" if step.unit == "GPU" else "of the host"
        where = f"over {first.domains} nodes" if first.domains > 1 else node
        yield (
            f"communication {format_duration(step.comm_ns)}, {format_percent(hidden)} of it hidden; most: {first.calls} "
            f"{first.op}, {format_bytes(first.size_bytes)} together, among {first.ranks} ranks {where}"
        )


def limit_ns(step: DryStep) -> float:
    """Return the time of what limits the step."""
    if step.limit in step.parts:
        return step.parts[step.limit]
    kinds = ("memory", "fused", "copy") if step.limit == "memory" else (step.limit,)
    return sum(row.time_ns for row in step.kernels if row.kind in kinds and row.phase != "optimizer")


def memory(job: DryJob) -> Iterator[str]:
    step, rank = job.largest, job.fullest(job.largest.ranks)
    kinds = sorted(step.memory.by_kind.items(), key=lambda item: -item[1])
    yield "peak " + listed([f"{kind} {format_bytes(size)}" for kind, size in kinds if size][:4])
    largest = weightiest(rank)
    if largest is not None:
        heavy = largest.size_bytes >= HEAVY * rank.memory.peak_bytes
        chunk = "; chunk the loss" if heavy and is_logits(largest, rank) else ""
        yield f"largest: {what_and_where(largest, rank)}, {format_bytes(largest.size_bytes)}{chunk}"


def advice(job: DryJob) -> Iterator[Advice]:
    for change in dry_changes(job):
        gain = f"{change.gain:+.0%} speed, memory {format_bytes(change.step.memory.needs_bytes)}"
        yield Advice(text=f"{change.text} ({'makes it fit, ' if change.makes_fit else ''}{gain}; {change.how})")


def notes(job: DryJob) -> Iterator[str]:
    """Yield what the dry run did in place of the script, once a kind."""
    notes = dict.fromkeys(note for ranks in job.worlds.values() for rank in ranks for note in rank.notes)
    for code, several in grouped(notes, lambda note: note.code).items():
        yield _note_words(code, several)
    yield from job.largest.notes
    world = job.worlds[job.largest.ranks]
    alone = any(note.code == "alone" for note in notes)
    if job.largest.ranks > 1 and not alone and not any(rank.calls for rank in world):
        yield f"the script sends nothing: {job.largest.ranks} GPUs would each train a model of their own"


def _note_words(code: str, notes: list[DryNote]) -> str:
    places = [note.place for note in notes if note.place]
    if len(notes) == 1 or code not in _NOTES:
        return "; ".join(f"{note.text}" + (f" ({note.place})" if note.place else "") for note in notes[:MOST_PLACES])
    return f"{_NOTES[code]}: {listed(places, at_most=MOST_PLACES)}"


def rests_on(job: DryJob) -> str:
    step, rank = job.largest, job.worlds[job.largest.ranks][0]
    calls = f"{counted(len(rank.order), 'operator')} and {counted(len(rank.calls), 'collective')}"
    return f"{job.name} run here without data, step {rank.steps}: {calls}, exact; their time: {step.rests_on}"
