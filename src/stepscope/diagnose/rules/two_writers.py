"""Two jobs, or two ranks, wrote one metrics file: its epochs repeat or go backwards.

What
----
Epoch numbers of a run that occur twice or decrease. If every epoch occurs as often as there are ranks, every rank
writes. If rows of one series never alternate with rows of another, the job was restarted.

Why
---
Times, losses and epochs of such a file belong to several trainings: means cover a mixture, and the time to an accuracy
is undefined.

Known problems
--------------
Two jobs whose epochs never overlap (one continued where the other stopped) look like one.

References
----------
codeharris/multi-gpu-ddp appends to experiments/*/metrics.csv without asking whether another job does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from stepscope.core.words import counted
from stepscope.diagnose.rule import Rule, Statement, advise
from stepscope.records.finding import Finding, Skipped
from stepscope.records.training import TrainingRun
from stepscope.results.epochs import written_by_several
from stepscope.results.evidence import Evidence, name_of


def check(evidence: Evidence) -> Statement:
    with_epochs = [run for run in evidence.runs if run.epochs or run.settings.get("duplicate_epochs")]
    if not with_epochs:
        return Skipped(reason="no run has epochs", command="stepscope bench MATRIX.yaml --set base.epochs=2")
    findings = [finding for run in with_epochs if (finding := _report(run)) is not None]
    if findings:
        return findings
    return f"{counted(len(with_epochs), 'run')}: epochs in order, each once"


def _report(run: TrainingRun) -> Finding | None:
    numbers = [epoch.number for epoch in run.epochs]
    counts = Counter(numbers)
    doubled = sorted({n for n, times in counts.items() if times > 1} | _marked(run))
    backwards = [(before, after) for before, after in pairwise(numbers) if after < before]
    if not doubled and not backwards:
        return None
    sentences = []
    if doubled:
        shown = ", ".join(str(n) for n in doubled[:8]) + (", ..." if len(doubled) > 8 else "")
        sentences.append(f"written more than once: epoch {shown}")
    if backwards:
        sentences.append(f"epoch {backwards[0][1]} follows epoch {backwards[0][0]}" + _times(len(backwards)))
    if written_by_several(run):
        sentences.append("no row states whose it is: tables leave out the time of an epoch and the best accuracy")
    cause, fix = _cause(run, counts, backwards)
    what = f"{counted(len(doubled), 'epoch')} twice" if doubled else "epochs that go backwards"
    return Finding(
        severity="problem",
        title=f"{run.run_id}: {what} in one metrics file, probably because {cause}",
        evidence=tuple(sentences),
        confidence="certain: epoch numbers repeat or decrease; the writer is likely",
        advice=(advise(fix),),
        subject=name_of(run),
        runs=(run.run_id,),
        priority="wrong",
        wrong_runs=(run.run_id,),
    )


def _marked(run: TrainingRun) -> set[int]:
    """Epochs that the importer left out because they were there already (``settings["duplicate_epochs"]``)."""
    marked = run.settings.get("duplicate_epochs")
    if isinstance(marked, (list, tuple, set, frozenset)):
        return {n for n in marked if isinstance(n, int)}
    return set()


def _times(number: int) -> str:
    return "" if number == 1 else f", and so on, {number} times in all"


def _cause(run: TrainingRun, counts: Counter[int], backwards: Sequence[tuple[int, int]]) -> tuple[str, str]:
    times = set(counts.values())
    if run.world_size is not None and run.world_size > 1 and times == {run.world_size}:
        return (
            f"each of {run.world_size} ranks writes",
            "let only rank 0 write: if torch.distributed.get_rank() == 0",
        )
    alternating = run.settings.get("epoch_series_alternate")
    if alternating is False or (alternating is None and len(backwards) == 1):
        return (
            "the job was restarted",
            "give every start its own folder, or remove the epochs that a checkpoint repeats",
        )
    return "two jobs wrote it", "give every job its own folder (its id in the path), and measure again"


RULE = Rule(
    symptom="two jobs or several ranks wrote one metrics file",
    needs=("runs",),
    look=check,
    folded=True,
    decided_by="an epoch twice, or before its predecessor",
    protocol=1,
)
