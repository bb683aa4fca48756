"""Speed-up and efficiency of runs against their baselines, whoever measured them (METRICS: Scaling)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from stepscope.records.training import ScalingRow, TrainingRun
from stepscope.stats.scaling import rate


def scaling_rows(runs: Sequence[TrainingRun], *, drop_epochs: int = 1) -> tuple[ScalingRow, ...]:
    """One row for every finished run whose baseline is known, baselines included; in the order of ``runs``.

    A baseline is the one that the run names, else the only run of its group on the fewest ranks.
    drop_epochs: first epochs left out of means (warm-up), as long as one remains.
    """
    rows = []
    for run in runs:
        base = _baseline(run, runs)
        if base is not None and run.world_size is not None and base.world_size is not None:
            row = _row(run, base, drop_epochs)
            rows += [row] if row is not None else []
    return tuple(rows)


def steady_epochs(run: TrainingRun, drop_epochs: int) -> tuple[float, ...]:
    """Durations (ns) of the epochs after the first ``drop_epochs``; of all, where none would remain."""
    timed = [e.duration_ns for e in run.epochs if e.duration_ns is not None]
    return tuple(timed[drop_epochs:] or timed)


def _baseline(run: TrainingRun, runs: Iterable[TrainingRun]) -> TrainingRun | None:
    if run.status != "ok" or run.world_size is None:
        return None
    if run.baseline_id is not None:
        return next((r for r in runs if r.run_id == run.baseline_id and r.status == "ok"), None)
    alike = [r for r in runs if r.group == run.group and r.status == "ok" and r.world_size is not None]
    fewest = min((r.world_size or 0 for r in alike), default=0)
    first = [r for r in alike if r.world_size == fewest]
    return first[0] if len(first) == 1 and len(alike) > 1 else None


def _row(run: TrainingRun, base: TrainingRun, drop_epochs: int) -> ScalingRow | None:
    found = _speedup(run, base, drop_epochs)
    if found is None or run.world_size is None or base.world_size is None:
        return None
    speedup, basis = found
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
        speedup=speedup,
        low=None,
        high=None,
        efficiency=speedup / relative,
        scaling=None if is_baseline else run.scaling,
        rating=None if is_baseline else rate(speedup, world_size=relative),
    )


def _speedup(run: TrainingRun, base: TrainingRun, drop_epochs: int) -> tuple[float, str] | None:
    if run.samples_per_s is not None and base.samples_per_s is not None and base.samples_per_s.value > 0:
        return run.samples_per_s.value / base.samples_per_s.value, "throughput"
    mine, theirs = steady_epochs(run, drop_epochs), steady_epochs(base, drop_epochs)
    if mine and theirs and run.scaling != "weak":
        return fmean(theirs) / fmean(mine), f"mean epoch, first {drop_epochs} left out"
    return None
