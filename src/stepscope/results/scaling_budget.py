"""1 rank against n, from traces or from runs: speed-up, efficiency, and the parts of the step that took the difference.

speedup = throughput over the baseline's, efficiency = speedup / (ranks / baseline's ranks). The loss is
time * (1 - efficiency): what the run takes above its ideal time, part by part against the baseline's parts scaled alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from stepscope.core.dataclass import record
from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted, grouped
from stepscope.records.comparison import ScalingBudget, ScalingPart, ScalingReading
from stepscope.records.nouns import EXPOSED_COMM, Estimate, Measured, Scaling
from stepscope.records.parts import TITLES
from stepscope.records.trace_collectives import RankWaitTotal
from stepscope.records.trace_summary import RankPass, TraceSummary
from stepscope.records.training import ScalingRow, TrainingRun
from stepscope.results.epochs import PER_EPOCH, epochs_mixed, steady_times
from stepscope.results.evidence import NoScaling
from stepscope.results.scaling import baseline_of, rate
from stepscope.stats.compare import ratio_of_means
from stepscope.stats.measured import BOOTSTRAP_SEED
from stepscope.stats.order import MIN_INTERVAL_SAMPLES
from stepscope.stats.spans import measure_within

if TYPE_CHECKING:
    from stepscope.results.evidence import Evidence, TraceEvidence


SAME_WORK = 0.1
"""Relative difference up to which the work of a rank counts as the same, or as divided by the ranks."""

RESOLUTION_NS = 1.0
"""Clocks of traces and logs resolve no less: an amount below it is what differences of floats leave, and counts as 0."""

PHASES = {
    "data_wait_ns": "input", "forward_ns": "forward", "backward_compute_ns": "backward",
    "exposed_comm_ns": "exposed_comm", "optimizer_ns": "optimizer", "other_ns": "other",
}  # fmt: skip


@record
class _Traced:
    """One traced job. steps: length of each step on its slowest rank, ns. parts: mean over ranks and steps, ns.

    flop: of a rank's matrix products per step, from recorded shapes; None: not recorded. ranks: those that were traced.
    """

    job: TraceEvidence
    world: int
    steps: tuple[float, ...]
    parts: Mapping[str, float]
    flop: float | None
    ranks: int


def scaling_budgets(
    evidence: Evidence, *, stated: Scaling | None = None, drop_epochs: int = 1
) -> tuple[tuple[ScalingBudget, ...], tuple[str, ...]]:
    """Return a budget for every job or imported run with a baseline on fewer ranks, and why there is none for others."""
    notes: list[str] = []
    traced = _trace_budgets(evidence, stated, notes)
    by_id = {run.run_id: run for run in evidence.runs if run.workload is None}  # cells of ours have rules of their own
    rows = {row.run_id: row for row in evidence.scaling if not row.is_baseline and row.baseline_id in by_id}
    runs = [
        _run_budget(by_id[key], by_id[row.baseline_id], row, drop_epochs) for key, row in rows.items() if key in by_id
    ]
    mixed = {key for key, run in by_id.items() if epochs_mixed(run)}
    notes += [
        f"{run.run_id} holds the epochs of several trainings"
        for run in by_id.values()
        if run.run_id in mixed and len(by_id) > 1
    ]
    groups = grouped(by_id.values(), lambda run: run.group)
    runs += [
        _undecided_budget(run, tuple(by_id.values()) if run.baseline_id else groups[run.group])
        for run in by_id.values()
        if run.run_id not in rows and run.run_id not in mixed
    ]
    return (*traced, *filter(None, runs)), tuple(NoScaling(f"no scaling verdict: {why}") for why in notes)


def _trace_budgets(evidence: Evidence, stated: Scaling | None, notes: list[str]) -> list[ScalingBudget]:
    """Return the budgets of traced jobs on more ranks beside the one on fewest; a note where that is not one alone."""
    given = [job for job in evidence.traces if job.cell_id is None]
    jobs = [traced for job in given if len(given) > 1 and (traced := _traced_job(job)) is not None]
    fewest = min((job.world for job in jobs), default=0)
    bases = [job for job in jobs if job.world == fewest]
    others = [job for job in jobs if job.world > fewest]
    if not others:
        return []
    if len(bases) > 1:
        one_job = bases[0].job.job is not None and len({base.job.job for base in bases}) == 1
        what = "captures of one job are" if one_job else "traced jobs ran"
        notes.append(f"{len(bases)} {what} on {counted(fewest, 'rank')}; name the one to compare with")
        return []
    pairs = []
    for job in others:
        devices, base_devices = (
            ", ".join(sorted({rank.facts.device_name for rank in side.job.summary.ranks if rank.facts.device_name}))
            for side in (job, bases[0])
        )
        if devices and base_devices and devices != base_devices:
            notes.append(f"{job.job.name} ran on {devices}, {bases[0].job.name} on {base_devices}")
            continue
        pairs.append(_pair_budget(job, bases[0], stated))
    return pairs


def _traced_job(job: TraceEvidence) -> _Traced | None:
    """Read the steps of a traced job; None where the number of ranks is unknown, or no step was recorded."""
    ranks = [rank for rank in job.summary.ranks if rank.steps and not rank.partial]
    world = _world_size(job.summary)
    if world is None or not ranks:
        return None
    numbers = set.intersection(*({step.step for step in rank.steps if step.parts.window_ns} for rank in ranks))
    if not numbers:
        return None
    windows = {
        number: [step.parts.window_ns for rank in ranks for step in rank.steps if step.step == number]
        for number in numbers
    }
    flop = [rank.utilisation.hardware_flop for rank in ranks if rank.utilisation and rank.utilisation.hardware_flop]
    return _Traced(
        job=job,
        world=world,
        steps=tuple(float(max(windows[number])) for number in sorted(numbers)),
        parts=_mean_parts_ns(job.summary, ranks, numbers),
        flop=fmean(flop) if len(flop) == len(ranks) else None,
        ranks=len(ranks),
    )


def _world_size(summary: TraceSummary) -> int | None:
    """Return the number of ranks as recorded; a single rank that took part in no collective is a job of one."""
    if summary.world_size is not None:
        return summary.world_size
    alone = len(summary.ranks) == 1 and all(
        rank.communication is None or not rank.communication.collectives for rank in summary.ranks
    )
    return 1 if alone else None


def _mean_parts_ns(summary: TraceSummary, ranks: Sequence[RankPass], numbers: set[int]) -> dict[str, float]:
    """Return the mean of a step's parts over ranks and steps; with what the slowest rank takes beyond the mean they sum to
    the step.

    Waiting is bounded by exposed communication; idle time for data and computation of unknown kind have their share of the
    capture's.
    """
    from stepscope.traces.waits import waits_of  # of traces alone

    steps = [step for rank in ranks for step in rank.steps if step.step in numbers]
    mean = {
        key: fmean(getattr(step.parts, name) for step in steps)
        for key, name in (
            ("compute", "compute_ns"), ("comm", "exposed_comm_ns"), ("copies", "exposed_memory_ns"), ("idle", "idle_ns"),
        )
    }  # fmt: skip
    waits = waits_of(summary.collectives)
    lost = sum(_lost_ns(rank, waits[rank.facts.rank], numbers) for rank in ranks if rank.facts.rank in waits)
    waiting = min(lost / len(steps), mean["comm"])
    causes = [cause for rank in ranks for cause in rank.idle]
    idle = sum(cause.idle_ns for cause in causes)
    data = mean["idle"] * (sum(c.idle_ns for c in causes if c.cause == "data") / idle if idle else 0.0)
    slowest = fmean(max(s.parts.window_ns for s in steps if s.step == number) for number in numbers)
    computed = sum(rank.budget.parts.compute_ns for rank in ranks if rank.budget is not None)
    unknown = mean["compute"] * (sum(rank.unknown_ns for rank in ranks) / computed if computed else 0.0)
    return {
        "compute": mean["compute"] - unknown,
        "unknown": unknown,
        "exposed_comm": mean["comm"] - waiting,
        "waiting": waiting,
        "input": data,
        "copies": mean["copies"],
        "idle": mean["idle"] - data,
        "slowest_rank": slowest - fmean(step.parts.window_ns for step in steps),
    }


def _lost_ns(rank_pass: RankPass, waits: RankWaitTotal, numbers: set[int]) -> int:
    """Return what a rank loses to later ones in these steps, ns: exposed waiting, and what it transfers exposed because it
    is ahead."""
    from stepscope.traces.waits import exposed_waits

    if rank_pass.communication is None:
        return 0
    edges = [(s.start_ns, s.start_ns + s.parts.window_ns) for s in rank_pass.steps if s.step in numbers]
    starts, ends = np.array(edges, dtype=np.int64).T
    waited = measure_within(exposed_waits(waits, rank_pass.communication), starts, ends).sum()
    calls = zip(rank_pass.communication.collectives, waits.ahead_by_call, strict=True)
    return int(waited) + sum(ahead for call, ahead in calls if call.step in numbers)


def _pair_budget(run: _Traced, base: _Traced, stated: Scaling | None) -> ScalingBudget:
    """Return the budget of two traced jobs; both readings where the kind of scaling is unknown."""
    scaling, why = (stated, "as stated with --scaling") if stated else _by_work(run, base)
    ratio = ratio_of_means(base.steps, run.steps, rng=np.random.default_rng(BOOTSTRAP_SEED))
    times = tuple(Measured(value=fmean(side.steps), n=len(side.steps)) for side in (base, run))
    readings = []
    for kind in (scaling,) if scaling else ("strong", "weak"):
        work = run.world / base.world if kind == "weak" else 1.0
        readings.append(
            _scaling_reading(
                kind, ratio.times(work), run.world / base.world,
                times[1].value, times[0].value, base.parts, run.parts,
            )
        )  # fmt: skip
    return ScalingBudget(
        base=base.job.name,
        run=run.job.name,
        base_world_size=base.world,
        world_size=run.world,
        unit="step",
        basis=f"mean of {counted(len(base.steps), 'traced step')} and of {len(run.steps)}, slowest rank"
        + "".join(f", traces of {side.ranks} of {side.world} ranks" for side in (base, run) if side.ranks < side.world),
        base_time=times[0],
        time=times[1],
        decided_by=why,
        readings=tuple(readings),
        no_interval=None if ratio.low is not None else _why_no_interval("step", [length.n for length in times]),
        traced=True,
    )


def _by_work(run: _Traced, base: _Traced) -> tuple[Scaling | None, str | None]:
    """Return the kind of scaling and what shows it: strong where a rank's matrix products are divided by the ranks, weak
    where they are the same; else not known."""
    if not run.flop or not base.flop:
        return None, None
    share, divided = run.flop / base.flop, base.world / run.world
    why = f"a rank computes {share:.2f} of the FLOP per step that a rank of {base.job.name} does (recorded shapes)"
    if abs(share - 1) <= SAME_WORK:
        return "weak", why
    return ("strong", why) if abs(share / divided - 1) <= SAME_WORK else (None, None)


def _scaling_reading(
    scaling: Scaling | None,
    speedup: Estimate,
    ratio: float,
    time: float,
    base_time: float,
    base_parts: Mapping[str, float],
    parts: Mapping[str, float],
) -> ScalingReading:
    """Return speed-up and loss, ns, by part under one kind of scaling. ratio: of the ranks; time, base_time: steps in ns."""
    efficiency = speedup.value / ratio
    lost = time * (1 - efficiency)
    scale = time * efficiency / base_time
    base_parts, parts = ({key: _resolved_ns(ns) for key, ns in part_ns.items()} for part_ns in (base_parts, parts))
    loss = {key: _resolved_ns(parts[key] - base_parts[key] * scale) for key in parts}
    return ScalingReading(
        scaling=scaling,
        speedup=speedup.value,
        low=speedup.low,
        high=speedup.high,
        efficiency=efficiency,
        rating=rate(speedup.value, world_size=ratio),
        ideal_ns=time * efficiency,
        lost_ns=lost,
        parts=tuple(
            ScalingPart(
                key=key,
                base_ns=base_parts[key],
                ideal_ns=base_parts[key] * scale,
                run_ns=parts[key],
                lost_ns=loss[key],
                share=_loss_share(loss[key], lost),
            )
            for key in parts
            if base_parts[key] or parts[key]
        ),
    )


def _loss_share(part_ns: float, lost_ns: float) -> float | None:
    """Return the part's share of the loss; floats of a single part may differ from it by what no clock resolves."""
    is_part = lost_ns > 0 and 0 <= part_ns <= lost_ns + RESOLUTION_NS
    return min(1.0, part_ns / lost_ns) if is_part else None


def _resolved_ns(ns: float) -> float:
    return 0.0 if abs(ns) < RESOLUTION_NS else ns


def _run_budget(run: TrainingRun, base: TrainingRun, row: ScalingRow, drop_epochs: int) -> ScalingBudget | None:
    """Return the budget of a run beside its baseline, by steps or epochs; None where both lack either."""
    unit, times = _unit_and_times(run, base, drop_epochs)
    if times is None:
        return None
    ranks = (row.baseline_world_size, row.world_size)
    readings = [(row.scaling, Estimate(value=row.speedup, low=row.low, high=row.high))]
    decided_by = _why_this_scaling(run, base, row.scaling)
    return _two_run_budget(run, base, unit, times, ranks, readings, basis=row.basis, decided_by=decided_by)


def _undecided_budget(run: TrainingRun, runs: Sequence[TrainingRun]) -> ScalingBudget | None:
    """Return both readings of the step times of a run and its baseline, whose batches no file tells."""
    base = baseline_of(run, runs)
    if base is None or run.step_ns is None or base.step_ns is None:
        return None
    if not run.world_size or not base.world_size or base.world_size >= run.world_size:
        return None
    ranks, times = (base.world_size, run.world_size), (base.step_ns, run.step_ns)
    strong = base.step_ns.value / run.step_ns.value
    weak = strong * (run.world_size / base.world_size)
    readings: list[_ScaledSpeedup] = [("strong", Estimate(value=strong)), ("weak", Estimate(value=weak))]
    return _two_run_budget(run, base, "step", times, ranks, readings, basis="step time", decided_by=None)


_ScaledSpeedup = tuple[Scaling | None, Estimate]
"""Scaling and speed-up."""


def _two_run_budget(
    run: TrainingRun,
    base: TrainingRun,
    unit: str,
    times: tuple[Measured, Measured],
    ranks: tuple[int, int],
    readings: Sequence[_ScaledSpeedup],
    *,
    basis: str,
    decided_by: str | None,
) -> ScalingBudget:
    """Return the budget of two runs. unit: what the times are of. times, ranks: the baseline's and the run's."""
    parts, base_parts = _run_parts(run, unit), _run_parts(base, unit)
    keys = set(parts) & set(base_parts)
    base_parts, parts = (
        _parts_and_rest_ns(base_parts, keys, times[0].value),
        _parts_and_rest_ns(parts, keys, times[1].value),
    )
    a_unit = "an epoch" if unit == "epoch" else "a step"
    return ScalingBudget(
        base=_name_beside(base, run),
        run=_name_beside(run, base),
        run_ids=(run.run_id, base.run_id),
        base_world_size=ranks[0],
        world_size=ranks[1],
        unit=unit,
        basis=basis,
        base_time=times[0],
        time=times[1],
        decided_by=decided_by,
        readings=tuple(
            _scaling_reading(*reading, ranks[1] / ranks[0], times[1].value, times[0].value, base_parts, parts)
            for reading in readings
        ),
        no_interval=None if readings[0][1].low is not None else _why_no_interval(unit, [length.n for length in times]),
        no_parts=None if keys else f"the files record only the time of {a_unit}, not its parts",
    )


def _name_beside(run: TrainingRun, other: TrainingRun) -> str:
    """Name a run by its group where that tells the two apart: tables say the ranks beside it."""
    return run.group if run.group != other.group else run.label


def _why_no_interval(unit: str, samples: Iterable[int | None]) -> str:
    """Say why a budget has no interval."""
    counts = [sample or 1 for sample in samples]
    if max(counts) == 1:
        return "one sample each: no interval"
    if min(counts) < MIN_INTERVAL_SAMPLES:
        return f"fewer than {MIN_INTERVAL_SAMPLES} {unit}s on a side: no interval"
    return "the files do not record the variation of samples: no interval"


def _unit_and_times(
    run: TrainingRun, base: TrainingRun, drop_epochs: int
) -> tuple[str, tuple[Measured, Measured] | None]:
    """Return what the times of baseline and run are of (step or epoch), and the times, ns; None: nothing of both is
    timed."""
    if run.step_ns is not None and base.step_ns is not None:
        return "step", (base.step_ns, run.step_ns)
    epochs = [steady_times(side, drop_epochs) for side in (base, run)]
    if all(epochs):
        first, second = (Measured(value=fmean(epoch), n=len(epoch)) for epoch in epochs)
        return "epoch", (first, second)
    if run.epoch_ns is not None and base.epoch_ns is not None:
        return "epoch", (base.epoch_ns, run.epoch_ns)
    return "step", None


def _run_parts(run: TrainingRun, unit: str) -> dict[str, float]:
    """Return what the source tells of a step's or an epoch's parts, ns; one rank alone exposes no communication."""
    if unit != "step":
        per_epoch = run.settings.get(PER_EPOCH)
        if isinstance(per_epoch, int | float):
            return {"exposed_comm": float(per_epoch)}
        return {"exposed_comm": 0.0} if run.world_size == 1 else {}
    if run.phases is not None:
        return {key: getattr(run.phases, name) for name, key in PHASES.items()}
    if run.exposed_comm_ns is not None:
        return {"exposed_comm": run.exposed_comm_ns.value}
    return {"exposed_comm": 0.0} if run.world_size == 1 else {}


def _parts_and_rest_ns(parts: Mapping[str, float], keys: set[str], time: float) -> dict[str, float]:
    """Return the parts that both sides tell, and the rest of the time, so that they sum to it; nothing where none is
    known."""
    if not keys:
        return {}
    kept = {key: value for key, value in parts.items() if key in keys}
    return {**kept, "rest": time - sum(kept.values())}


def _why_this_scaling(run: TrainingRun, base: TrainingRun, scaling: Scaling | None) -> str | None:
    """Say what shows the kind of scaling; None: nothing does."""
    if scaling == "strong" and run.global_batch is not None and run.global_batch == base.global_batch:
        return f"both have a global batch of {run.global_batch}"
    if scaling == "weak" and run.micro_batch is not None and run.micro_batch == base.micro_batch:
        return f"a rank has a batch of {run.micro_batch} in both"
    return (
        "an epoch is one pass over the same data" if scaling == "strong" else None if scaling is None else "as stated"
    )


PARTS = {
    "compute": "compute", "exposed_comm": EXPOSED_COMM, "waiting": "waiting for a peer", "input": "input",
    "copies": TITLES["copies"], "idle": "idle: host and gaps", "slowest_rank": "slowest rank beyond the mean",
    "unknown": TITLES["unknown"],
    "forward": "forward", "backward": "backward", "optimizer": "optimizer", "other": "other", "rest": "rest of the step",
}  # fmt: skip

LEAST = 0.05
"""Share of the loss below which a part is not named."""


def verdict(budget: ScalingBudget) -> tuple[str, ...]:
    """Give the answer in one line for each reading: speed-up, interval or why none, efficiency."""
    base = _name_on_ranks(budget.base, budget.base_world_size, short=True)
    ranks = f"{_name_on_ranks(budget.run, budget.world_size)} against {base}"
    lines = []
    for reading in budget.readings:
        interval = budget.no_interval if reading.low is None or reading.high is None else None
        precision = interval or f"95% interval {reading.low:.3g} to {reading.high:.3g}"
        rating = f", {reading.rating}" if reading.rating else ", above the ideal of that many ranks"
        how = f"{reading.scaling} scaling: " if reading.scaling else ""
        lines.append(
            f"{how}{reading.speedup:.2f}x ({precision}), efficiency {format_percent(reading.efficiency)}{rating}; {ranks}"
        )
    if len(budget.readings) > 1:
        lines.append(
            "unknown whether the batch per rank was kept (weak) or divided (strong): state it with --scaling, or record"
            " traces with record_shapes=True"
        )
    return tuple(lines)


def _name_on_ranks(name: str, ranks: int, *, short: bool = False) -> str:
    """Write ``8-gpus on 8 ranks``; a name that says so already is left as it is."""
    if name.endswith(f"on {counted(ranks, 'rank')}"):
        return name
    return f"{name} on {ranks if short else counted(ranks, 'rank')}"


def loss(budget: ScalingBudget, reading: ScalingReading) -> str:
    """Write ``a step takes 4.9 ms, 2.5 ms would be ideal: 2.4 ms lost; of the loss 61% exposed communication, ...``.

    In times with their signs, which sum to the loss, where parts gained: ``2.4 ms lost: +2.7 ms ..., -0.3 ms ...``.
    """
    text = (
        f"{_articled(budget.unit)} takes {format_duration(budget.time.value)}, {format_duration(reading.ideal_ns)} would be"
        f" ideal ({format_duration(budget.base_time.value)} on {counted(budget.base_world_size, 'rank')})"
    )
    if reading.lost_ns <= 0:
        return f"{text}: no loss"
    text, least = f"{text}: {format_duration(reading.lost_ns)} lost", LEAST * reading.lost_ns
    worth = [part for part in ranked(reading) if abs(part.lost_ns) >= least]
    if any(part.lost_ns < 0 for part in worth):
        return f"{text}: {', '.join(f'{_signed_duration(part.lost_ns)} {PARTS[part.key]}' for part in worth)}"
    shares = ", ".join(f"{format_percent(part.lost_ns / reading.lost_ns)} {PARTS[part.key]}" for part in worth[:4])
    return text + (f"; of the loss {shares}" if shares else "")


def _signed_duration(ns: float) -> str:
    return f"{'-' if ns < 0 else '+'}{format_duration(abs(ns))}"


def ranked(reading: ScalingReading) -> list[ScalingPart]:
    """Sort the parts, the largest loss first."""
    return sorted(reading.parts, key=lambda part: -part.lost_ns)


def _articled(unit: str) -> str:
    return f"an {unit}" if unit[0] in "aeiou" else f"a {unit}"
