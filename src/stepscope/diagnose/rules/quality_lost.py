"""Faster per epoch, but worse or slower to the accuracy: the speed-up costs quality.

What
----
Compares a run's best validation accuracy with the baseline's over as many epochs. Fires if it is lower by more than
twice the noise of the two (the spread of the accuracy between neighbouring epochs, second half of training) and by half
a point; by 5 points if too few epochs show the noise. The evidence gives times to target accuracies with the speed-up
of an epoch.

Why
---
With the batch per rank kept, n ranks make 1/n of the updates in an epoch, so the epoch is n times as fast and teaches
less; with an unscaled learning rate, much less. A speed-up that needs more epochs, or never arrives, is none.

Known problems
--------------
Each run is one draw of the seed: differences between seeds can exceed those between epochs. An accuracy that is still
rising at the end shows progress, not the final level. Runs on synthetic data count only if their labels can be learned.

References
----------
Goyal et al., Accurate, Large Minibatch SGD, arXiv:1706.02677, 2017 (linear scaling of the learning rate, warm-up). Shallue
et al., Measuring the Effects of Data Parallelism, JMLR 20, 2019. metrics.md, Scaling: speed-up to a target accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from stepscope.core.units import format_duration
from stepscope.core.words import counted
from stepscope.diagnose.commands import again
from stepscope.diagnose.rule import Advices, Finding, Limit, Rule, Statement, finding, skipped
from stepscope.results.epochs import learning_rate
from stepscope.results.evidence import Evidence, cell_of
from stepscope.results.learning import MIN_LOST, MIN_NOISES, OTHER_WORK, Quality, losses, quality
from stepscope.results.pairs import Pair, pairs


def check(evidence: Evidence) -> Statement:
    """Look for: faster per epoch, but accuracy at equal epochs is lower."""
    judged = [(pair, learned) for pair in pairs(evidence) if (learned := quality(pair.run, pair.base)) is not None]
    if not judged:
        return skipped(
            "no run and its baseline record validation accuracies of the same epochs",
            "stepscope bench MATRIX.yaml --set base.epochs=10",
        )
    pair, worst = max(judged, key=lambda case: case[1].lost - case[1].limit)
    return [_quality_lost_finding(evidence, *case) for case in judged if case[1].is_lower] or (
        f"{pair.name}: best accuracy {worst.best:.4f} against {worst.base_best:.4f}{_in_epochs_text(worst)}, limit"
        f" {worst.limit:.4f} lower"
    )


def _in_epochs_text(learned: Quality) -> str:
    return "" if learned.epochs is None else f" in {counted(learned.epochs, 'epoch')}"


def _quality_lost_finding(evidence: Evidence, pair: Pair, learned: Quality) -> Finding:
    """Return the finding, with evidence, stake and advice: faster per epoch, but accuracy at equal epochs is lower."""
    row, points = pair.row, f"{learned.lost * 100:.1f} points"
    # The lowest target that both reach: the roundest, and the one least decided by single epochs.
    common = next((t for t in row.targets if t.speedup is not None), None)
    to_target = "" if common is None else f", {common.speedup:.2f}x to validation accuracy {common.accuracy:.2f}"
    missed = [t for t in row.targets if t.time_ns is None and t.reached_epochs is None and t.baseline_reached_epochs]
    never = f", {missed[0].accuracy:.2f} never reached" if missed else ""
    chance = "too few epochs to estimate the noise" if learned.noise is None else f"noise is {learned.noise * 100:.1f}"
    trained = len(pair.run.epochs), len(pair.base.epochs)
    noises = f"{learned.lost / learned.noise:.1f} times the noise between epochs, " if learned.noise else ""
    return finding(
        f"accuracy is {points} lower on {pair.ranks}: {row.speedup:.2f}x per epoch{to_target}{never}",
        f"best validation accuracy{_in_epochs_text(learned)}: {learned.best:.4f} on {pair.ranks}, {learned.base_best:.4f} on"
        f" {pair.base_ranks}: {points} lower, {chance}",
        [
            f"validation accuracy {target.accuracy:.2f}: {_reached(target.reached_epochs, target.time_ns, trained[0])} on "
            f"{pair.ranks}, {_reached(target.baseline_reached_epochs, target.baseline_time_ns, trained[1])} on "
            f"{pair.base_ranks}{'' if target.speedup is None else f': {target.speedup:.2f}x'}"
            for target in row.targets
        ],
        _settings_text(pair),
        severity="warning" if learned.noise is None else "problem",
        confidence=f"likely: {noises}one run each",
        advice=_quality_advice(evidence, pair),
        of=(pair.run, pair.base),
        priority="wrong",
        wrong_runs=(pair.run.run_id,) if learned.is_other_work else (),
    )


def _quality_advice(evidence: Evidence, pair: Pair) -> tuple[Advices, ...]:
    """Return what to compare where accuracy is lost: batches and updates, learning rate, samplers."""
    run, base, cell = pair.run, pair.base, cell_of(evidence, pair.run)
    ours, theirs = run.global_batch, base.global_batch
    if ours is not None and ours == theirs:
        return (
            "batch and updates are the baseline's: compare the mathematics (samplers, set_epoch, division by "
            "ranks; math-differs)",
            "repeat both with other seeds: one run each may differ by chance",
        )
    factor = ours / theirs if ours and theirs else pair.relative
    scaled = (learning_rate(run) or 0) > 1.5 * (learning_rate(base) or math.inf)
    return (
        (
            "keep the global batch when adding ranks (strong scaling): same updates, same curve",
            None if cell is None or theirs is None else again(evidence, cell, ("global_batch", theirs)),
        ),
        (
            "the learning rate is scaled already: use more epochs of warm-up, and judge by the time to the accuracy"
            if scaled
            else f"or scale the learning rate with the global batch (x {factor:g}) with a few epochs of "
            "warm-up, and judge by the time to the accuracy"
        ),
    )


def _reached(epochs: int | None, time_ns: float | None, trained: int) -> str:
    if epochs is None:
        return f"never in {counted(trained, 'epoch')}"
    time = "" if time_ns is None else f" ({format_duration(time_ns)})"
    return f"after {counted(epochs, 'epoch')}{time}"


def _settings_text(pair: Pair) -> Iterator[str]:
    """Say what losses and settings show of updates and learning rate."""
    run, base = pair.run, pair.base
    ours, theirs = losses(run), losses(base)
    if both := ours.keys() & theirs.keys():
        last = max(both)
        fewer = ": fewer or smaller updates in the same epochs" if ours[last] > 1.1 * theirs[last] else ""
        yield (
            f"training loss after {counted(last + 1, 'epoch')}: {ours[last]:.4f} on {pair.ranks}, {theirs[last]:.4f} on"
            f" {pair.base_ranks}{fewer}"
        )
    if run.global_batch and base.global_batch:
        ratio = run.global_batch / base.global_batch
        yield (
            f"global batch {run.global_batch} against {base.global_batch}: {ratio:g} times fewer updates an epoch"
            if ratio > 1
            else f"global batch {run.global_batch} on both: the number of updates is not the cause"
        )
    elif run.steps_per_epoch and base.steps_per_epoch:
        yield f"updates an epoch: {run.steps_per_epoch} against {base.steps_per_epoch}"
    else:
        yield (
            f"unknown whether the batch is per rank or over all ranks: per rank, updates are {pair.relative:g} times fewer"
        )
    rate, base_rate = learning_rate(run), learning_rate(base)
    if rate is None or base_rate is None:
        yield "the settings do not include the learning rate"
    elif rate == base_rate:
        yield f"learning rate {rate:g} on both: not scaled"
    else:
        yield f"learning rate {rate:g} against {base_rate:g}: scaled by {rate / base_rate:.3g}"


RULE = Rule(
    symptom="faster per epoch, but accuracy at equal epochs is lower",
    needs=("scaling",),
    look=check,
    folded=True,
    protocol=5,
    thresholds={
        "noise": Limit(
            MIN_NOISES,
            unit="standard deviations of one epoch's accuracy, both runs combined",
            source="about 1 of 40 equal pairs exceeds it by chance; the best of several epochs varies less than one",
        ),
        "accuracy": Limit(MIN_LOST, unit="accuracy", source="half a point: the usual difference between seeds"),
        "accuracy, noise unknown": Limit(
            OTHER_WORK,
            unit="accuracy",
            source="stepscope's choice, 2026-11: ten times the usual difference, and two standard errors of 800 test "
            "samples",
        ),
    },
)
