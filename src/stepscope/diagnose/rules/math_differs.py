"""Loss curves that should coincide differ: strategies or numbers of ranks do not compute the same thing.

What
----
Finished runs of one source and group with the same global batch, learning rate, optimizer and seed, and exact
arithmetic (no lossy communication hook), must learn alike: data parallelism only distributes the work. The rule
compares their training losses after the first epoch, where rounding has grown least, with the run on the fewest ranks,
and fires above {apart%} ({apart_unseeded%} if no seed is recorded). It always fires if the replicas' parameters differ
at the end of a run (bench compares checksums).

Why
---
A strategy that trains something else is not faster. Usual causes: gradients averaged over ranks with unequal batches, a
last window divided by its full length, unscaling before the reduction, a sampler without set_epoch, replicas that
started from different parameters.

Known problems
--------------
Dropout draws different numbers on different ranks; with few steps per epoch that alone can amount to some per cent.
Shuffling on another number of ranks reorders the same samples. Settings that a source does not record may differ.

References
----------
Exact strategies agree norm-wise to 1e-5 in fp32.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stepscope.core.units import format_percent
from stepscope.core.words import counted
from stepscope.diagnose.rule import Limit, Rule, Statement, advise
from stepscope.records.finding import Finding, Skipped
from stepscope.records.training import TrainingRun
from stepscope.results.epochs import learning_rate, setting
from stepscope.results.evidence import Evidence, name_of
from stepscope.results.learning import SEEN_TOO_OFTEN, losses, lossy, times_seen

MAX_APART = Limit(
    value=0.02,
    unit="first epoch's loss, relative",
    source="fp32 rounding causes less than 1e-3 in one epoch of our presets, dropout on other ranks about 1%",
)
MAX_APART_UNSEEDED = Limit(
    value=0.05, unit="first epoch's loss, relative, seed not recorded", source="start values then differ too"
)

_REPLICAS = "replicas differ"
_SAME = ("optimizer", "seed", "momentum", "weight_decay", "lr_warmup", "loss", "clip")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Apart:
    """First-epoch losses of a run and of the one that it is held against. relative: difference / the other's."""

    run: TrainingRun
    other: TrainingRun
    loss: float
    other_loss: float
    limit: float

    @property
    def relative(self) -> float:
        return abs(self.loss - self.other_loss) / max(abs(self.other_loss), 1e-12)


def check(evidence: Evidence) -> Statement:
    finished = [run for run in evidence.runs if run.status == "ok"]
    findings = [_replicas(run, note) for run in finished for note in run.notes if note.startswith(_REPLICAS)]
    compared = [pair for members in _alike(finished).values() for pair in _apart(members)]
    findings += [_report(pair) for pair in compared if pair.relative > pair.limit]
    if findings:
        return findings
    if not compared:
        return Skipped(
            reason="no two runs with losses by epoch are known to train alike (same global batch and settings)",
            command="stepscope bench MATRIX.yaml --set base.epochs=2",
        )
    worst = max(compared, key=lambda pair: pair.relative / pair.limit)
    return (
        f"{counted(len(compared), 'pair')} of runs: first losses at most {format_percent(worst.relative)} apart, limit"
        f" {format_percent(worst.limit)}"
    )


def _alike(runs: Iterable[TrainingRun]) -> dict[object, list[TrainingRun]]:
    """Runs that must learn alike, by everything that decides what is learned."""
    alike: dict[object, list[TrainingRun]] = {}
    for run in runs:
        if run.global_batch is None or 0 not in losses(run) or lossy(run):
            continue
        if run.settings.get("duplicate_epochs") or (times_seen(run) or 0) >= SEEN_TOO_OFTEN:
            continue
        key = (
            run.group, run.dataset, run.dataset_size, run.global_batch, learning_rate(run), run.source,
            *(repr(setting(run.settings, name)) for name in _SAME),
        )  # fmt: skip
        alike.setdefault(key, []).append(run)
    return {key: members for key, members in alike.items() if len(members) > 1}


def _apart(members: list[TrainingRun]) -> list[_Apart]:
    ordered = sorted(members, key=lambda run: (run.world_size or 0, run.strategy != "single"))
    first = ordered[0]
    seeded = setting(first.settings, "seed") is not None
    limit = (MAX_APART if seeded else MAX_APART_UNSEEDED).value
    return [
        _Apart(run=run, other=first, loss=losses(run)[0], other_loss=losses(first)[0], limit=limit)
        for run in ordered[1:]
    ]


def _report(apart: _Apart) -> Finding:
    run, other = apart.run, apart.other
    ours, theirs = losses(run), losses(other)
    last = max(ours.keys() & theirs.keys())
    evidence = [
        f"training loss after the first epoch: {apart.loss:.4f} ({run.label}), {apart.other_loss:.4f} ({other.label})",
        f"equal on both: global batch {run.global_batch}"
        + (", seed" if setting(run.settings, "seed") is not None else "; no seed recorded")
        + (", learning rate" if learning_rate(run) is not None else ""),
    ]
    if last > 0:
        evidence.insert(1, f"after {counted(last + 1, 'epoch')}: {ours[last]:.4f} and {theirs[last]:.4f}")
    return Finding(
        severity="problem",
        title=f"losses of {run.label} and {other.label} differ by {format_percent(apart.relative)} after one epoch",
        evidence=tuple(evidence),
        confidence="likely: unrecorded settings may differ, and dropout differs between ranks",
        advice=(
            advise(
                "compare gradients of one step in float64 with one process: sum of sample losses over all ranks /"
                " number of samples, uneven last batches included"
            ),
            advise("check samplers (set_epoch), division by ranks and accumulation, unscaling before the reduction"),
        ),
        subject=name_of(run),
        runs=(run.run_id,),
        case="replicas",
        priority="wrong",
        wrong_runs=(run.run_id,),
    )


def _replicas(run: TrainingRun, note: str) -> Finding:
    return Finding(
        severity="problem",
        title=f"the replicas of {run.label} have different parameters",
        evidence=(note,),
        confidence="measured: checksums of all parameters after the last step",
        advice=(
            advise(
                "every rank must start from the same parameters and apply the same reduced gradients: broadcast the"
                " parameters, unscale and check for infinity only after the reduction"
            ),
        ),
        subject=name_of(run),
        runs=(run.run_id,),
        priority="wrong",
        wrong_runs=(run.run_id,),
    )


RULE = Rule(
    symptom="loss curves that should coincide differ",
    needs=("runs",),
    look=check,
    folded=True,
    protocol=5,
    thresholds={"apart": MAX_APART, "apart_unseeded": MAX_APART_UNSEEDED},
)
