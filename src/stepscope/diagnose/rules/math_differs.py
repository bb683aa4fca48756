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

from stepscope.core.units import format_percent
from stepscope.core.words import counted, grouped
from stepscope.diagnose.rule import Finding, Limit, Rule, Statement, finding, skipped
from stepscope.records.training import TrainingRun
from stepscope.results.epochs import learning_rate, setting
from stepscope.results.evidence import Evidence
from stepscope.results.learning import SEEN_TOO_OFTEN, losses, lossy, times_seen

MAX_APART = Limit(
    0.02,
    unit="first epoch's loss, relative",
    source="fp32 rounding causes less than 1e-3 in one epoch of our presets, dropout on other ranks about 1%",
)
MAX_APART_UNSEEDED = Limit(
    0.05, unit="first epoch's loss, relative, seed not recorded", source="start values then differ too"
)

_REPLICAS = "replicas differ"
_SAME = ("optimizer", "seed", "momentum", "weight_decay", "lr_warmup", "loss", "clip")


_Apart = tuple[float, float, TrainingRun, TrainingRun]
"""How far first-epoch losses are apart, of the other's; its limit; the run, and the one that it is compared with."""


def check(evidence: Evidence) -> Statement:
    """Look for: loss curves that should coincide differ."""
    finished = [run for run in evidence.runs if run.status == "ok"]
    compared = [pair for members in _runs_alike(finished) for pair in _losses_apart(members)]
    findings = [
        *(
            finding(
                f"the replicas of {run.label} have different parameters",
                note,
                severity="problem",
                confidence="measured: checksums of all parameters after the last step",
                advice=[
                    (
                        "every rank must start from the same parameters and apply the same reduced gradients: broadcast the"
                        " parameters, unscale and check for infinity only after the reduction"
                    )
                ],
                of=run,
                priority="wrong",
                wrong_runs=(run.run_id,),
            )
            for run in finished
            for note in run.notes
            if note.startswith(_REPLICAS)
        ),
        *(_math_differs_finding(*pair) for pair in compared if pair[0] > pair[1]),
    ]
    if findings:
        return findings
    if not compared:
        return skipped(
            "no two runs with losses by epoch are known to train alike (same global batch and settings)",
            "stepscope bench MATRIX.yaml --set base.epochs=2",
        )
    relative, limit, *_ = max(compared, key=lambda pair: pair[0] / pair[1])
    return (
        f"{counted(len(compared), 'pair')} of runs: first losses at most {format_percent(relative)} apart, limit"
        f" {format_percent(limit)}"
    )


def _runs_alike(runs: Iterable[TrainingRun]) -> list[list[TrainingRun]]:
    """Runs that must learn alike, by everything that decides what is learned."""
    judged = [
        run
        for run in runs
        if run.global_batch is not None
        and 0 in losses(run)
        and not lossy(run)
        and not run.settings.get("duplicate_epochs")
        and (times_seen(run) or 0) < SEEN_TOO_OFTEN
    ]
    alike = grouped(judged, lambda run: (
        run.group, run.dataset, run.dataset_size, run.global_batch, learning_rate(run), run.source,
        *(repr(setting(run.settings, name)) for name in _SAME),
    ))  # fmt: skip
    return [members for members in alike.values() if len(members) > 1]


def _losses_apart(members: list[TrainingRun]) -> list[_Apart]:
    first, *others = sorted(members, key=lambda run: (run.world_size or 0, run.strategy != "single"))
    limit = MAX_APART_UNSEEDED if setting(first.settings, "seed") is None else MAX_APART
    loss = losses(first)[0]
    return [(abs(losses(run)[0] - loss) / max(abs(loss), 1e-12), limit, run, first) for run in others]


def _math_differs_finding(relative: float, _limit: float, run: TrainingRun, other: TrainingRun) -> Finding:
    """Return the finding, with evidence, stake and advice: loss curves that should coincide differ."""
    ours, theirs = losses(run), losses(other)
    last = max(ours.keys() & theirs.keys())
    return finding(
        f"losses of {run.label} and {other.label} differ by {format_percent(relative)} after one epoch",
        f"training loss after the first epoch: {ours[0]:.4f} ({run.label}), {theirs[0]:.4f} ({other.label})",
        last > 0 and f"after {counted(last + 1, 'epoch')}: {ours[last]:.4f} and {theirs[last]:.4f}",
        f"equal on both: global batch {run.global_batch}"
        + (", seed" if setting(run.settings, "seed") is not None else "; no seed recorded")
        + (", learning rate" if learning_rate(run) is not None else ""),
        severity="problem",
        confidence="likely: unrecorded settings may differ, and dropout differs between ranks",
        advice=[
            (
                "compare gradients of one step in float64 with one process: sum of sample losses over all ranks /"
                " number of samples, uneven last batches included"
            ),
            "check samplers (set_epoch), division by ranks and accumulation, unscaling before the reduction",
        ],
        of=run,
        case="replicas",
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
