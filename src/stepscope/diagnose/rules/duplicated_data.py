"""Every rank trains on all the data: n ranks do n times the work of an epoch instead of sharing it.

What
----
With sample counts: the samples of all ranks in an epoch are at least {seen#} times the data set on several ranks. From
curves alone: the first epoch's training loss on n ranks is at least {loss%} lower than the baseline's, with the same data
and learning rate, while the epoch takes at least {time%} of the baseline's time. More ranks make one pass over the data
neither teach more nor take as long. From epoch times alone: the epoch takes at least {time%} of the baseline's time, while
another strategy of the same table, on as many ranks, has an efficiency above {other%}.

Why
---
The epoch does not get shorter with more ranks, but throughput looks right, since every sample is computed. It is the
most common scaling bug and looks like slow communication. Usual causes: no DistributedSampler, one behind a condition
that is false on the cluster, an iterable data set that is not split by rank and worker.

Known problems
--------------
Curves allow an inference only: a larger learning rate or smaller batches also lower the first loss, so pairs known to
differ in them are not judged. Intended bagging (each rank resamples) looks the same.

References
----------
torch.utils.data.distributed.DistributedSampler. Runs exp043 and exp044 of codeharris/multi-gpu-ddp, whose authors took this
for a communication problem (a published case): 0.60 against 0.47 after the first epoch, 100 s against 125 s.
"""

from __future__ import annotations

from statistics import median

from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.diagnose.commands import remeasured
from stepscope.diagnose.rule import Advices, Finding, Limit, Rule, Statement, finding, skipped
from stepscope.records.training import TrainingRun
from stepscope.results.evidence import Evidence, name_of
from stepscope.results.learning import LOSS_LOWER, SEEN_TOO_OFTEN, TIME_KEPT, FirstEpochs, curves, times_seen
from stepscope.results.pairs import SHARED, Pair, pairs, sharing_beside


def _own_share_advice(evidence: Evidence, run: TrainingRun) -> tuple[Advices, ...]:
    """Return how each rank gets data of its own, and how to check that."""
    return (
        "give each rank its own share of the data: DataLoader(sampler=DistributedSampler(dataset)) and "
        "sampler.set_epoch(epoch),"
        " set whenever torch.distributed.is_initialized(); split an IterableDataset by rank and worker",
        (
            "then measure again; count samples per rank and epoch and compare their sum with the data set",
            remeasured(evidence, run),
        ),
    )


def check(evidence: Evidence) -> Statement:
    """Look for: every rank trains on all the data instead of its share."""
    by_run = {pair.run.run_id: pair for pair in pairs(evidence)}
    findings: list[Finding] = []
    looked: list[str] = []
    for run in evidence.runs:
        if run.status != "ok" or run.world_size is None or run.world_size < 2:
            continue
        seen, pair = times_seen(run), by_run.get(run.run_id)
        if seen is None and pair is not None and (other := sharing_beside(pair, by_run.values())) is not None:
            findings.append(_finding_beside_another(evidence, pair, other))
            continue
        if seen is not None:
            looked.append(
                f"{name_of(run)}: each sample is trained on {seen:.2f} times per epoch, limit {SEEN_TOO_OFTEN:g}"
            )
            if seen >= SEEN_TOO_OFTEN:
                findings.append(_finding_by_count(evidence, run, pair, seen))
        elif pair is not None and (shown := curves(pair.run, pair.base)) is not None:
            than = "lower" if shown.loss_lower >= 0 else "higher"
            looked.append(
                f"{pair.name}: first loss {format_percent(abs(shown.loss_lower))} {than} than on {pair.base_ranks}"
                f" (limit {format_percent(LOSS_LOWER)} lower), epoch time {shown.time_ratio:.2f}x (limit {TIME_KEPT:g}x)"
            )
            if shown.duplicated:
                findings.append(_finding_by_curves(evidence, pair, shown))
    if findings or looked:
        return findings or looked[0]
    return skipped(
        "no run on several ranks records samples per epoch with the data set's size, or losses by epoch",
        "stepscope bench MATRIX.yaml --set base.epochs=2",
    )


def _finding_beside_another(evidence: Evidence, pair: Pair, other: Pair) -> Finding:
    """Return the finding of an epoch that gets no shorter, beside a run whose epoch does."""
    name, ranks = pair.run.strategy or pair.run.label, pair.ranks
    times = {side: _epoch_text(run) for side, run in (("run", pair.run), ("base", pair.base), ("other", other.run))}
    return finding(
        f"{name}: an epoch does not get shorter on {ranks}: each rank probably runs the whole epoch, not its share",
        f"{name}: {times['run']} on {ranks}, {times['base']} on {pair.base_ranks}",
        f"{other.run.strategy or other.run.label} on {ranks}, in the same table: {times['other']}, {other.row.speedup:.2f}x",
        "so the machine and its network scale: it is not the communication, the data is not sharded",
        severity="problem",
        stake=1 - 1 / pair.relative,
        confidence="likely: from the epoch times beside another strategy's; samples counted on each rank would prove it",
        advice=_own_share_advice(evidence, pair.run),
        of=(pair.run, pair.base, other.run),
        priority="wrong",
        wrong_runs=(pair.run.run_id,),
    )


def _epoch_text(run: TrainingRun) -> str:
    times = [epoch.duration_ns for epoch in run.epochs if epoch.duration_ns]
    if run.epoch_ns is None and not times:
        return "an epoch"
    return format_duration(run.epoch_ns.value if run.epoch_ns is not None else median(times))


def _finding_by_count(evidence: Evidence, run: TrainingRun, pair: Pair | None, seen: float) -> Finding:
    """Return the finding of ranks that count more samples than the data set has."""
    size, counts = run.dataset_size or 0, run.samples_seen_per_rank or ()
    shown = ", ".join(f"{n:,}" for n in counts[:8])
    return finding(
        f"{counted(run.world_size or 0, 'rank')} train on the same data: each sample {seen:.1f} times per epoch",
        f"{round(seen * size):,} samples in an epoch of {size:,}, all ranks together",
        bool(counts) and f"samples by rank: {shown}{', ...' if len(counts) > 8 else ''}",
        pair is not None and _speedup_text(pair),
        severity="problem",
        stake=1 - 1 / seen,
        confidence="measured: samples were counted on every rank",
        advice=_own_share_advice(evidence, run),
        of=run,
        priority="wrong",
        wrong_runs=(run.run_id,),
    )


def _finding_by_curves(evidence: Evidence, pair: Pair, shown: FirstEpochs) -> Finding:
    """Return the finding of a first epoch that learns more than more ranks on one share could."""
    ours, theirs = shown.later or (0, 0)
    lower = format_percent(shown.loss_lower)
    return finding(
        f"{pair.ranks} probably train on the same data: the first epoch's loss is {lower} lower than on "
        f"{pair.base_ranks}, and the epoch is no faster",
        f"training loss after the first epoch: {shown.loss:.4f} on {pair.ranks}, {shown.base_loss:.4f} on"
        f" {pair.base_ranks}: {lower} lower after one pass over the same data",
        theirs > ours
        and f"what {pair.ranks} reach in {counted(ours, 'epoch')} takes {pair.base_ranks}"
        f" {counted(theirs, 'epoch')}: an epoch on {pair.ranks} makes more than one pass over the data",
        f"epoch time: {shown.time_ratio:.2f}x that of {pair.base_ranks}, not {1 / pair.relative:.2f}x: the ranks do not"
        " share the work",
        _speedup_text(pair),
        severity="problem",
        stake=1 - 1 / pair.relative,
        confidence="likely: from the learning curves and the epoch times; samples counted on each rank would prove it",
        advice=_own_share_advice(evidence, pair.run),
        of=(pair.run, pair.base),
        priority="wrong",
        wrong_runs=(pair.run.run_id,),
    )


def _speedup_text(pair: Pair) -> str:
    return f"speed-up {pair.speedup_text}: duplicated data explains it without slow communication"


RULE = Rule(
    symptom="every rank trains on all the data instead of its share",
    needs=("runs",),
    look=check,
    folded=True,
    protocol=1,
    thresholds={
        "seen": Limit(
            SEEN_TOO_OFTEN,
            unit="samples of all ranks / data set size",
            source="padding of the last batch adds a few per cent; full duplication on two ranks is 2.0",
        ),
        "loss": Limit(
            LOSS_LOWER,
            unit="lower first-epoch loss, relative",
            source="exp043 / exp044 of codeharris: 22%; a correct pair there (exp020 / exp021) is 13% higher",
        ),
        "time": Limit(
            TIME_KEPT,
            unit="epoch time / the baseline's",
            source="two ranks that share the data at 56% efficiency need 0.9; exp044 needs 1.25",
        ),
        "other": Limit(
            SHARED,
            unit="efficiency of another strategy on as many ranks",
            source="rated fair above it: a machine on which one strategy scales is not what keeps another from it",
        ),
    },
)
