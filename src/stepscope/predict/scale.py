"""Would it scale? A measured job replayed with more ranks, other links, another GPU, batch or precision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from statistics import NormalDist

from stepscope.core.errors import UsageError
from stepscope.core.units import format_duration, format_percent, format_size
from stepscope.core.words import counted, in_words
from stepscope.predict.collectives.costs import Z80
from stepscope.predict.job import MeasuredJob, Replayed, rebucketed, replayed, sending, stretched
from stepscope.predict.prices import Prices
from stepscope.predict.what_if import ComputeChange, WhatIf, compute_change
from stepscope.records import mesh as meshes
from stepscope.records.nouns import Scaling
from stepscope.records.prediction import MeasuredPoint, ScaledStep, ScalePrediction

KNEE = 0.80
"""Efficiency below which more ranks no longer scale well."""

LEAST_REACH = 0.02
"""No prediction is better than this share of the step (80%): measured steps of the same job differ by as much."""

OFF = 0.10
"""Replays of the measured step that miss it by more than this share are said before anything else."""

PARTS = ("compute", "copies", "input", "idle", "straggling", "exposed", "unexplained")


def predict_scale(
    job: MeasuredJob,
    gpus: Sequence[int],
    prices: Prices,
    *,
    measured: Prices | None = None,
    what: WhatIf | None = None,
    scaling: Scaling = "weak",
) -> ScalePrediction:
    """Predict the job on each number of ranks. prices: of the question; measured: of the links that the job used, to replay
    its own step with (None: the same). Raises UsageError for a change that the job does not allow."""
    if not job.calls and job.pipeline is None:
        raise UsageError(
            f"{job.name}: its step calls no collective",
            why="what it would send to other ranks is not in it, only that each rank would compute as long",
            fix="measure it under DDP or FSDP on 2 ranks; `stepscope predict --model` needs no measurement",
        )
    what, own = what or WhatIf(), measured or prices
    checked = replayed(job, lambda *call: own.of(*call).time_ns)
    ladder = sorted({*gpus, *_doubled_ranks(job.ranks, max(gpus))})
    predicted = {
        ranks: _scaled_step(job, ranks, prices, checked=checked, what=what, scaling=scaling) for ranks in ladder
    }
    base = predicted[job.ranks][0].throughput  # another GPU or network makes the job faster, not its scaling better
    steps = {ranks: _step_with_efficiency(step, base, job.ranks) for ranks, (step, _) in predicted.items()}
    upward = [ranks for ranks in ladder if ranks >= job.ranks]
    good = list(takewhile(lambda ranks: (steps[ranks].efficiency or 0.0) >= KNEE, upward))
    knee = max(good, default=None)
    assumptions = list(dict.fromkeys(text for _, change in predicted.values() for text in change.assumptions))
    if scaling == "strong":
        assumptions.append("strong scaling: the global batch stays, each rank's batch shrinks as ranks are added")
    return ScalePrediction(
        name=job.name,
        source=job.source,
        device=job.device,
        ranks=job.ranks,
        scaling=scaling,
        change=words(what),
        step_ns=job.step_ns,
        replay_ns=checked.step_ns,
        replay_checks=not own.fitted,
        prices=prices.source,
        steps=tuple(steps[ranks] for ranks in gpus),
        measured=tuple(MeasuredPoint(ranks=ranks, step_ns=step) for ranks, step in job.points),
        base_throughput=base,
        knee=knee,
        knee_open=bool(good) and len(good) == len(upward),
        assumptions=(*_standing_assumptions(job, gpus), *assumptions),
        notes=(*job.notes, *_short_of_cores(job, gpus), *prices.notes),
    )


def words(what: WhatIf) -> str:
    """Describe a change: ``gpu h200-sxm, batch 2x``; empty for none."""
    return ", ".join(
        text
        for text in (
            what.gpu and f"gpu {what.gpu}",
            what.link and f"link {what.link}",
            what.batch and f"batch {what.batch:g}x",
            what.precision and f"precision {what.precision}",
            what.overlap and f"overlap {what.overlap}",
            what.bucket_bytes and f"bucket {format_size(what.bucket_bytes)}",
        )
        if text
    )


def largest_of(ranks: int) -> float:
    """Expected largest of ``ranks`` standard normal values (Blom 1958: quantile of (n - 0.375) / (n + 0.25))."""
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))


def _doubled_ranks(first: int, last: int) -> list[int]:
    return [first * 2**n for n in range(max(0, int(math.log2(max(1.0, last / first)))) + 1)]


def _scaled_step(
    job: MeasuredJob, ranks: int, prices: Prices, *, checked: Replayed, what: WhatIf, scaling: Scaling
) -> tuple[ScaledStep, ComputeChange]:
    """Return the step on so many ranks, replayed with its computation and communication scaled, and how computation
    changes."""
    batch = (what.batch or 1.0) * (job.ranks / ranks if scaling == "strong" else 1.0)
    change = compute_change(job, what, batch=batch, stated=scaling == "weak")
    changed = job if what.bucket_bytes is None else rebucketed(job, what.bucket_bytes)
    if change.payload != 1 or (batch != 1 and job.divided):
        changed = sending(changed, gradients=change.payload, activations=change.payload * batch)
    lag = job.spread_ns * (largest_of(ranks) - largest_of(job.ranks)) + 0.0  # no -0
    low, usual, high = (_scaled_own_ns(job, change, body) for body in change.body)
    grown = lag * usual / job.length_ns
    body = job.length_ns - job.tail_ns
    tail = job.tail_ns * change.tail
    moved = stretched(changed, body=max(0.0, usual + grown - tail) / body if body else 1.0, tail=change.tail)
    perfect = what.overlap == "perfect"

    def at(name: str) -> Replayed:
        return replayed(moved, lambda *call: getattr(prices.of(*call), name), ranks=ranks, perfect=perfect)

    middle = at("time_ns")
    # What the replay of the measured step lacks, or has too much, is neither computation nor its collectives.
    unexplained = job.step_ns - checked.step_ns
    step = max(middle.step_ns + unexplained, moved.length_ns)
    doubt = (LEAST_REACH * step, _straggling_doubt(job, grown), job.doubt * step if ranks != job.ranks else 0.0)
    # It may be communication that the prices lack: then it grows with it.
    more = max(1.0, middle.comm_ns / checked.comm_ns) if checked.comm_ns else 1.0
    above = math.hypot(at("high_ns").step_ns - middle.step_ns, high - usual, abs(unexplained) * more, *doubt)
    below = math.hypot(middle.step_ns - at("low_ns").step_ns, usual - low, abs(unexplained), *doubt)
    low_ns, high_ns = max(step - below, 0.5 * step), step + above
    work = batch * ranks / job.ranks  # samples of a step, over the measured one's
    parts = {
        "compute": usual - job.idle_ns - job.copies_ns * batch - job.input_ns * change.input,
        "copies": job.copies_ns * batch,
        "input": job.input_ns * change.input,
        "idle": job.idle_ns,
        "straggling": grown,
        "exposed": middle.exposed_ns,
        "unexplained": step - middle.step_ns,
    }
    return ScaledStep(
        ranks=ranks,
        step_ns=step,
        low_ns=low_ns,
        high_ns=high_ns,
        throughput=work * job.step_ns / step,
        throughput_low=work * job.step_ns / high_ns,
        throughput_high=work * job.step_ns / low_ns,
        efficiency=None,
        samples_per_s=None if job.global_batch is None else job.global_batch * work / step * 1e9,
        comm_ns=middle.comm_ns,
        dominant=max(parts, key=lambda name: parts[name]),
        **{f"{name}_ns": parts[name] for name in PARTS},
    ), change


def _step_with_efficiency(step: ScaledStep, base: float, base_ranks: int) -> ScaledStep:
    """Return ``step`` with its efficiency, against the throughput ``base`` on ``base_ranks`` ranks."""
    comparable = step.ranks >= base_ranks
    return replace(step, efficiency=step.throughput / base / (step.ranks / base_ranks) if comparable else None)


def _scaled_own_ns(job: MeasuredJob, change: ComputeChange, body: float) -> float:
    """Return the step's own work: computation changes by ``body``, copies and loading with the batch, pauses do not."""
    tail = min(job.tail_ns, job.compute_ns)  # what pauses there is in the tail counts as pause of the body
    return (
        (job.compute_ns - tail) * body
        + tail * change.tail
        + (job.copies_ns + job.input_ns) * change.input
        + job.idle_ns
    )


def _straggling_doubt(job: MeasuredJob, grown: float) -> float:
    """80% half-width of what more ranks add: a standard deviation from n values is known to 1 / sqrt(2 (n - 1)) of it."""
    if job.spread_from < 2:
        return abs(grown)
    return abs(grown) * min(1.0, Z80 / math.sqrt(2 * (job.spread_from - 1)))


def _standing_assumptions(job: MeasuredJob, gpus: Sequence[int]) -> tuple[str, ...]:
    """Return the assumptions that hold for every prediction of this job."""
    assumptions = []
    if job.fixed_ranks > 1 and max(gpus) != job.ranks:
        assumptions.append(
            f"more ranks are more replicas of {_replica_of(job)}, which stays as it is; on one replica alone what sharding "
            "over several would copy was not measured"
        )
    if job.pipeline is not None:
        assumptions.append(
            f"compute holds the bubble of the {job.pipeline.layout.schedule} schedule with messages that cost nothing; what "
            "they add to it is in exposed"
        )
    if max(gpus) != job.ranks:
        assumptions.append(
            "every rank computes and loads as measured: storage that all ranks share, and other jobs on the network, are "
            "not in the model"
        )
        share = job.spread_ns / job.length_ns if job.length_ns else 0.0
        of = "ranks of one step" if job.spread_of == "ranks" else "steps of the only rank that was read"
        assumptions.append(
            f"the slowest of more ranks is slower: {of} differ by {format_duration(job.spread_ns)} "
            f"({format_percent(share)}, standard deviation), taken as normal and independent"
        )
    return tuple(assumptions)


def _replica_of(job: MeasuredJob) -> str:
    return meshes.text({name: n for name, n in job.mesh.items() if name != meshes.grows(job.mesh)})


def _short_of_cores(job: MeasuredJob, gpus: Sequence[int]) -> tuple[str, ...]:
    """Say that ranks would share cores, where they would: the model does not hold that."""
    over = [ranks for ranks in gpus if job.cores is not None and ranks > job.cores]
    if not over:
        return ()
    return (
        f"{in_words(over)} ranks on this host's {counted(job.cores or 0, 'core')} take turns, and their steps are longer "
        f"than said: the prediction is for hosts on which a rank has as much of a core as the {job.ranks} measured ones had",
    )


def check_gpus(gpus: Sequence[int], job: MeasuredJob, *, scaling: Scaling) -> None:
    """Raises UsageError where so many ranks are no whole replicas, or cannot share a global batch."""
    unit = job.fixed_ranks
    if odd := [n for n in gpus if n % unit]:
        raise UsageError(
            f"{odd[0]} ranks is not a multiple of {unit}",
            why=f"a replica of {job.name} is {_replica_of(job)}, which stays as it was measured",
            fix=f"ask for {max(1, odd[0] // unit) * unit} or {(odd[0] // unit + 1) * unit}",
        )
    if scaling == "strong" and job.global_batch is not None:
        over = [n for n in gpus if n > job.global_batch]
        if over:
            raise UsageError(
                f"--scaling strong on {counted(over[0], 'GPU')}: the global batch of {job.global_batch} has fewer samples",
                fix="ask for fewer GPUs, or for --scaling weak",
            )
