"""Speed-up and efficiency of runs against their baselines, whoever measured them, and their rating."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from pathlib import PurePath
from statistics import fmean, median
from typing import Any

import numpy as np

from stepscope.core.words import grouped
from stepscope.records.nouns import Estimate, Measured, Scaling
from stepscope.records.training import Epoch, ScalingRow, TrainingRun
from stepscope.results.epochs import best_accuracy, epochs_mixed, steady_epochs, steady_times
from stepscope.results.learning import duplicated, quality, same_data, scaling_of, target_times
from stepscope.stats.compare import SUPERLINEAR, ratio_of_means
from stepscope.stats.measured import BOOTSTRAP_SEED

EXCELLENT, GOOD, FAIR = 0.9, 0.8, 0.5
"""Lower ends, exclusive, of the ratings of efficiency."""

NOT_EQUIVALENT = "not equivalent"
"""Stands in place of a rating where the run does other work than its baseline: a lower accuracy, or ranks that share no
data."""


def rate(speedup: float, *, world_size: float) -> str | None:
    """``excellent`` (efficiency > 0.9), ``good`` (> 0.8), ``fair`` (> 0.5), ``poor`` or ``negative`` (speed-up < 1).

    None above 1.05: a super-linear speed-up is not rated before its baseline is checked.
    """
    efficiency = speedup / world_size
    if efficiency > SUPERLINEAR:
        return None
    if speedup < 1.0:
        return "negative"
    if efficiency > EXCELLENT:
        return "excellent"
    if efficiency > GOOD:
        return "good"
    return "fair" if efficiency > FAIR else "poor"


PLAIN = (None, "single")
"""Strategies of a process that shares its work with no other."""

COMMUNICATION = tuple(f"env.{prefix}" for prefix in ("NCCL_", "TORCH_NCCL_", "GLOO_", "UCX_", "FI_"))
"""Variables that tune communication only: one rank, which sends nothing, is the same with and without."""

FREE = ("steps", "epochs", "network", "inject")
"""Settings in which a run and its baseline may differ: how long they ran, what one rank sends nothing over, faults."""


def scaling_rows(
    runs: Sequence[TrainingRun], *, drop_epochs: int = 1, targets: Sequence[float] = ()
) -> tuple[ScalingRow, ...]:
    """Return a row for every finished run whose baseline is known, and for every baseline; in the order of ``runs``.

    None for a run, or against a baseline, whose epochs are those of several trainings.

    drop_epochs: first epochs left out of means (warm-up), as long as one remains. targets: validation accuracies (0 to 1) to
    give the time to; empty: those that say most, see :class:`TargetTime`.
    """
    groups = grouped(runs, lambda run: run.group)
    by_run = {}
    for run in runs:
        base = baseline_of(run, runs if run.baseline_id else groups[run.group])  # of thousands few are in one group
        if base is not None and not epochs_mixed(run) and not epochs_mixed(base):
            by_run[run.run_id] = base
    bases = {base.run_id for base in by_run.values()}
    rows = []
    for run in runs:
        base = by_run.get(run.run_id) or (run if run.run_id in bases else None)
        row = None if base is None else _scaling_row(run, base, drop_epochs, targets)
        rows += [] if row is None else [row]
    by_id = {run.run_id: run for run in runs}
    doubted = {
        row.baseline_id
        for row in rows
        if row.efficiency > SUPERLINEAR and not superlinear_reasons(by_id[row.run_id], by_run[row.run_id])
    }
    return tuple(
        _rated_row(row, by_id[row.run_id], by_run[row.run_id], doubted, among=len(runs)) if not row.is_baseline else row
        for row in rows
    )


def shards(strategy: str | None) -> bool:
    """Whether a strategy, by its name, splits parameters or optimizer state among the ranks."""
    return any(name in (strategy or "").lower() for name in ("zero", "fsdp", "hsdp", "shard"))


def is_plain(run: TrainingRun) -> bool:
    """Whether the run's process shares its work with no other."""
    return _strategy_name(run) in PLAIN


def superlinear_reasons(run: TrainingRun, base: TrainingRun) -> tuple[str, ...]:
    """Say what makes more than linear speed-up possible with a sound baseline; empty: nothing known does."""
    reasons = []
    if run.precision != base.precision:
        reasons.append(f"different precision: {run.precision} against {base.precision}")
    if run.hardware != base.hardware and run.hardware and base.hardware:
        reasons.append(f"different machine: {run.hardware} against {base.hardware}")
    if run.micro_batch and base.micro_batch and run.micro_batch > base.micro_batch:
        reasons.append(f"larger batch per rank: {run.micro_batch} against {base.micro_batch}")
    reasons += [
        f"different {name}: {ours} against {theirs}"
        for name, (ours, theirs) in beside_ranks(run, base, among=1).items()
        if name != "precision"
    ]
    if shards(run.strategy):
        reasons.append(f"{run.strategy} shards state which leaves more memory per rank")
    return tuple(reasons)


_SHARDING = re.compile(r"(?:^|[_\s-])(?:zero(?:[_\s-]?stage)?|stage|sharding(?:_strategy)?|offload(?:_\w+)?)$", re.I)
"""Settings of a source that are part of its strategy."""

_STRATEGY = re.compile(r"config(?:uration)?|setup|mode|variant|parallelism|type|scheme|approach", re.I)
"""Columns of texts that name one, in tables without a column for it."""


FEW = 8
"""Runs that are read as one comparison: larger tables sweep over batches, each run beside the nearest there is."""


def beside_ranks(run: TrainingRun, base: TrainingRun, *, among: int) -> dict[str, tuple[object, object]]:
    """Return what of an imported run and its baseline decides the speed beside their ranks, and differs: name -> (run's,
    baseline's). Not to share the work on one rank is no other strategy, unless it shards there.
    among: how many runs they are of.
    """
    if run.workload is not None or base.workload is not None:
        return {}  # cells of ours have their settings in common
    facts: dict[str, tuple[object, object]] = {
        name: (run.settings[name], base.settings[name])
        for name in run.settings
        if name in base.settings and _SHARDING.search(name) and run.settings[name] != base.settings[name]
    }
    texts = {"strategy": (run.strategy, base.strategy)} | {
        name: (value, base.settings.get(name)) for name, value in run.settings.items() if _STRATEGY.fullmatch(name)
    }
    for name, (ours, theirs) in texts.items():
        if isinstance(ours, str) and isinstance(theirs, str):
            alone = base.world_size == 1 and not shards(theirs)
            if (not alone and _strategy_kind(ours) != _strategy_kind(theirs)) or _type_names(ours) != (
                _type_names(theirs) or _type_names(ours)
            ):
                facts[name] = ours, theirs
    if _differ_if_known(run.precision, base.precision):
        facts["precision"] = run.precision, base.precision
    ranks = (run.world_size or 1) / (base.world_size or 1)
    batches = (
        (run.global_batch, base.global_batch),
        (run.settings.get("batch_size"), base.settings.get("batch_size")),
        (run.micro_batch, base.micro_batch),
    )
    for batch, other in batches:
        if isinstance(batch, (int, float)) and isinstance(other, (int, float)) and batch > 0 and other > 0:
            with_ranks = batch != run.micro_batch or shards(run.strategy)  # sharding leaves memory for more on each
            usuals = (1.0, 1 / ranks, *((ranks,) if with_ranks else ()))
            if among <= FEW and not any(math.isclose(batch / other, usual, rel_tol=0.1) for usual in usuals):
                facts["batch"] = batch, other
            break
    return facts


def _strategy_kind(strategy: str) -> str:
    """Return a strategy's name without its numbers, which are often those of the ranks, but for a stage of ZeRO and the bits
    of a type."""
    stages = re.findall(r"(?:zero|stage)[\s_-]*(?:stage)?[\s_-]*(\d)", strategy.lower())
    return "".join([*re.findall(r"[a-z]", strategy.lower()), *stages, *_type_names(strategy)])


def _type_names(strategy: str) -> list[str]:
    return re.findall(r"(?:fp|bf|tf|float|int)\d+", strategy.lower())


def _rated_row(
    row: ScalingRow, run: TrainingRun, base: TrainingRun, doubted: Container[str], *, among: int
) -> ScalingRow:
    """Return ``row`` with its rating: none beside a super-linear row of the same baseline, which may be wrong for all of
    them."""
    if row.baseline_id in doubted or row.efficiency > SUPERLINEAR:
        return row
    rating, learned = rate(row.speedup, world_size=row.world_size / row.baseline_world_size), quality(run, base)
    other_work = (
        duplicated(run, base)
        or (learned is not None and learned.is_other_work)
        or bool(beside_ranks(run, base, among=among))
    )
    return replace(row, rating=NOT_EQUIVALENT if other_work and rating != "negative" else rating)


def speedups(runs: Sequence[TrainingRun]) -> dict[str, ScalingRow]:
    """Return the row of each run_id, of the runs of one folder that name their baseline."""
    named = {run.run_id for run in runs if run.baseline_id is not None}
    return {row.run_id: row for row in scaling_rows(runs) if row.run_id in named}


def with_baselines(runs: Sequence[TrainingRun]) -> tuple[TrainingRun, ...]:
    """Return the cells of one run folder with ``baseline_id`` (:func:`find_baseline`); a cell that others are measured
    against is its own baseline.

    A baseline without a result is a note.
    """
    groups = grouped(runs, lambda run: run.group)
    bases = {run.run_id: base.run_id for run in runs if (base := find_baseline(run, groups[run.group])) is not None}
    kinds: dict[str, set[Scaling | None]] = {}
    for run in runs:
        if run.run_id in bases:
            kinds.setdefault(bases[run.run_id], set()).add(run.scaling)
    with_ids = [_run_with_base_scaling(run, bases.get(run.run_id), kinds.get(run.run_id, set())) for run in runs]
    by_id = {run.run_id: run for run in with_ids}
    return tuple(_run_noting_no_speedup(run, by_id.get(run.baseline_id or "")) for run in with_ids)


def _run_with_base_scaling(run: TrainingRun, base_id: str | None, kinds: set[Scaling | None]) -> TrainingRun:
    """Return ``run`` with the kind of scaling of the runs measured against it, where ``kinds`` is one: it says neither
    itself."""
    if not kinds or base_id is not None:
        return replace(run, baseline_id=base_id)
    return replace(run, baseline_id=run.run_id, scaling=next(iter(kinds)) if len(kinds) == 1 else run.scaling)


def _run_noting_no_speedup(run: TrainingRun, base: TrainingRun | None) -> TrainingRun:
    if base is None or base is run or run.samples_per_s is None or base.samples_per_s is not None:
        return run
    note = f"no speed-up: the baseline {base.run_id} has no result ({base.status})"
    return replace(run, notes=(*run.notes, note))


def baseline_of(run: TrainingRun, runs: Sequence[TrainingRun]) -> TrainingRun | None:
    """Return what ``run``'s speed-up refers to: the run that it names, else :func:`find_baseline`; None where that one
    failed."""
    if run.status != "ok" or run.world_size is None:
        return None
    if run.baseline_id is None:
        baseline = find_baseline(run, runs)
    else:
        baseline = next((r for r in runs if r.run_id == run.baseline_id), None)
    return baseline if baseline is not None and baseline.status == "ok" else None


def find_baseline(run: TrainingRun, runs: Iterable[TrainingRun]) -> TrainingRun | None:
    """Return the comparable run on the fewest ranks, fewer than ``run``'s, for cells of ours and for imported rows alike.

    A finished run goes before others. Of several on that many ranks: a plain process (``single``, or no strategy), then the
    run's own strategy, then the fastest strategy; of runs of one strategy those with the same environment, network and
    length, of the same file, and of repeats the median (of an even number the faster of the middle two: a slow baseline
    flatters). None where there is none, or where some would make it strong and others weak scaling and nothing says which is
    meant.
    """
    ranks = run.world_size or 0
    fewer = [r for r in runs if r.world_size is not None and r.world_size < ranks and _are_comparable(run, r)]
    for there in ([r for r in fewer if r.status == "ok"], fewer):
        there = [r for r in there if scaling_of(run, r) is not None] or there
        fewest = min((r.world_size or 0 for r in there), default=0)
        first = [r for r in there if r.world_size == fewest]
        if len({scaling_of(run, r) for r in first}) > 1:
            return None
        if first:
            return _preferred_baseline(run, first)
    return None


def _preferred_baseline(run: TrainingRun, first: Sequence[TrainingRun]) -> TrainingRun:
    """Choose the baseline among several runs on the same number of ranks, all comparable with ``run``."""

    def order(other: TrainingRun) -> tuple[int, tuple[bool, ...]]:
        name = _strategy_name(other)
        kind = 0 if name == "single" else 1 if name in PLAIN else 2 if name == _strategy_name(run) else 3
        return kind, _difference_key(run, other)

    best = min(order(other) for other in first)
    repeats = grouped([other for other in first if order(other) == best], _strategy_name)
    middles = [_by_speed(members)[len(members) // 2] for members in repeats.values()]
    return _by_speed(middles)[-1]


def _by_speed(runs: Sequence[TrainingRun]) -> list[TrainingRun]:
    """Sort runs, the slowest first, by the first figure that all of them have; as given where they have none in common."""
    for speed in (
        lambda r: r.samples_per_s and r.samples_per_s.value,
        lambda r: (times := steady_times(r)) and -fmean(times),
        lambda r: r.epoch_ns and -r.epoch_ns.value,
        lambda r: r.step_ns and -r.step_ns.value,
    ):
        speeds = [speed(run) for run in runs]
        if all(speeds):
            return [run for _, run in sorted(zip(speeds, runs, strict=True), key=lambda pair: pair[0])]
    return list(runs)


def _are_comparable(run: TrainingRun, other: TrainingRun) -> bool:
    """Whether a run can be another's baseline: the same work on the same machine, with the batch that their scaling
    keeps."""
    if other.group != run.group or other.world_size is None:
        return False
    if other.run_id == run.run_id:
        return True
    if other.unit != run.unit or _differ_if_known(other.device, run.device):
        return False
    ours = run.workload is not None and other.workload is not None
    if ours and not _same_settings(run, other):
        return False
    if not (ours and other.source == run.source) and _differ_if_known(other.hardware, run.hardware):
        return False  # one run folder is of one machine
    if run.scaling == "strong":
        return not _differ_if_known(other.global_batch, run.global_batch)
    return not (ours or run.scaling == "weak") or not _differ_if_known(other.micro_batch, run.micro_batch)


def _same_settings(run: TrainingRun, other: TrainingRun) -> bool:
    """Whether nothing but the ranks, the strategy and what one rank cannot feel differs between two cells of ours."""
    if (run.workload, dict(run.model_options)) != (other.workload, dict(other.model_options)):
        return False
    plain = is_plain(other)
    run_settings, other_settings = (
        {
            key: value
            for key, value in side.settings.items()
            if key not in FREE
            and not (plain and (key == "mesh" or key.startswith(COMMUNICATION) or key.startswith("strategy_options.")))
        }
        for side in (run, other)
    )
    return run_settings == other_settings


def _difference_key(run: TrainingRun, other: TrainingRun) -> tuple[bool, ...]:
    """Return a key by which the run that differs least in settings and place comes first."""

    def env(side: TrainingRun) -> dict[str, Any]:
        return {key: value for key, value in side.settings.items() if key.startswith("env.")}

    files = [PurePath(re.sub(r":\d+$", "", side.source)) for side in (run, other)]  # some importers add the line
    lengths = [(side.settings.get("steps"), side.settings.get("epochs")) for side in (run, other)]
    return (
        env(run) != env(other),
        run.settings.get("network") != other.settings.get("network"),
        run.settings.get("inject") != other.settings.get("inject"),
        lengths[0] != lengths[1],
        files[0] != files[1],
        files[0].parent != files[1].parent,
    )


def _strategy_name(run: TrainingRun) -> str | None:
    return run.strategy_key or run.strategy


def _differ_if_known(one: object, other: object) -> bool:
    return one is not None and other is not None and one != other


_Speedup = tuple[Estimate, str, float | None]
"""The speed-up, what it is computed from, and that of medians where it is one of means."""


def _scaling_row(run: TrainingRun, base: TrainingRun, drop_epochs: int, targets: Sequence[float]) -> ScalingRow | None:
    """Return the row of a run beside its baseline; None where both have no figure in common, or ranks are unknown."""
    ratio = _speedup_over(run, base, drop_epochs)
    if ratio is None or run.world_size is None or base.world_size is None:
        return None
    speedup, basis, of_medians = ratio
    is_baseline = run.run_id == base.run_id
    relative = run.world_size / base.world_size
    return ScalingRow(
        group=run.group,
        run_id=run.run_id,
        baseline_id=base.run_id,
        world_size=run.world_size,
        baseline_world_size=base.world_size,
        is_baseline=is_baseline,
        basis=basis,
        speedup=speedup.value,
        low=None if is_baseline else speedup.low,
        high=None if is_baseline else speedup.high,
        efficiency=speedup.value / relative,
        scaling=None if is_baseline else scaling_of(run, base),
        rating=None,
        speedup_of_medians=of_medians,
        best_accuracy=best_accuracy(run),
        baseline_best_accuracy=best_accuracy(base),
        targets=() if is_baseline else target_times(run, base, targets),
    )


def _speedup_over(run: TrainingRun, base: TrainingRun, drop_epochs: int) -> _Speedup | None:
    """Return the throughput over the baseline's, from the best figures that both have: timed steps, epochs of the same data,
    rates.

    Epochs go before a rate without steps: they time useful work, whatever was counted as a sample.
    """
    rates = None if run.samples_per_s is None else base.samples_per_s
    if run.samples_per_s is not None and rates is not None and run.step_ns is not None and base.step_ns is not None:
        return _speedup_ratio(run.samples_per_s, rates, "median step")
    if same_data(run, base):
        of_epochs = _of_epochs(run, base, drop_epochs)
        if of_epochs is not None:
            return of_epochs
        if run.epoch_ns is not None and base.epoch_ns is not None:
            return _speedup_ratio(base.epoch_ns, run.epoch_ns, "epoch time")
    if run.samples_per_s is not None and rates is not None:
        return _speedup_ratio(run.samples_per_s, rates, "throughput")
    if run.step_ns is None or base.step_ns is None:
        return None
    if run.global_batch and base.global_batch:
        return _speedup_ratio(
            base.step_ns, run.step_ns, "step time and global batch", scale=run.global_batch / base.global_batch
        )
    kind = scaling_of(run, base)
    if kind is None or not run.world_size or not base.world_size:
        return None
    work = run.world_size / base.world_size if kind == "weak" else 1.0
    return _speedup_ratio(base.step_ns, run.step_ns, f"step time, {kind} scaling", scale=work)


def _speedup_ratio(top: Measured, bottom: Measured, basis: str, *, scale: float = 1.0) -> _Speedup | None:
    """Return top / bottom, measured independently: the relative half-widths of their intervals add in quadrature."""
    if top.value <= 0 or bottom.value <= 0:
        return None
    value = scale * top.value / bottom.value
    low = _combined_reach(top.low, top.value, bottom.value, bottom.high)
    high = _combined_reach(top.value, top.high, bottom.low, bottom.value)
    if low is None or high is None:
        return Estimate(value=value), basis, None
    return Estimate(value=value, low=value * math.exp(-low), high=value * math.exp(high)), basis, None


def _combined_reach(*ends: float | None) -> float | None:
    """Add the lengths in log of two one-sided intervals (from, to, from, to) in quadrature; None where an end is unknown."""
    positive = [end for end in ends if end is not None and end > 0]
    if len(positive) < len(ends):
        return None
    return math.hypot(math.log(positive[1] / positive[0]), math.log(positive[3] / positive[2]))


def _of_epochs(run: TrainingRun, base: TrainingRun, drop_epochs: int) -> _Speedup | None:
    """Return the ratio of mean epoch times, with a block bootstrap over the epochs (without it below 6 on a side)."""
    times, base_times = steady_times(run, drop_epochs), steady_times(base, drop_epochs)
    if not times or not base_times:
        return None
    ratio = ratio_of_means(base_times, times, rng=np.random.default_rng(BOOTSTRAP_SEED))
    return ratio, _epochs_basis(run, base, drop_epochs), median(base_times) / median(times)


def _epochs_basis(run: TrainingRun, base: TrainingRun, drop_epochs: int) -> str:
    epochs, base_epochs = _epoch_range(steady_epochs(run, drop_epochs)), _epoch_range(steady_epochs(base, drop_epochs))
    return f"mean of {epochs}" if epochs == base_epochs else f"mean of {epochs}, of the baseline's {base_epochs}"


def _epoch_range(epochs: Sequence[Epoch]) -> str:
    numbers = [e.number for e in epochs]
    first, last = min(numbers), max(numbers)
    return f"epoch {first}" if len(epochs) == 1 else f"epochs {first} to {last}"
