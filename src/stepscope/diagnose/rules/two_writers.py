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
from itertools import pairwise

from stepscope.core.words import counted
from stepscope.diagnose.rule import Finding, Rule, Statement, finding, skipped
from stepscope.records.training import TrainingRun
from stepscope.results.epochs import written_by_several
from stepscope.results.evidence import Evidence


def check(evidence: Evidence) -> Statement:
    """Look for: two jobs or several ranks wrote one metrics file."""
    with_epochs = [run for run in evidence.runs if run.epochs or run.settings.get("duplicate_epochs")]
    if not with_epochs:
        return skipped("no run has epochs", "stepscope bench MATRIX.yaml --set base.epochs=2")
    return [report for run in with_epochs if (report := _two_writers_finding(run)) is not None] or (
        f"{counted(len(with_epochs), 'run')}: epochs in order, each once"
    )


def _two_writers_finding(run: TrainingRun) -> Finding | None:
    """Return the finding, with evidence, stake and advice: two jobs or several ranks wrote one metrics file; None: it is
    not worth one."""
    numbers = [epoch.number for epoch in run.epochs]
    counts = Counter(numbers)
    marked = run.settings.get("duplicate_epochs")  # left out by the importer because they were there already
    left_out = {n for n in marked if isinstance(n, int)} if isinstance(marked, (list, tuple, set, frozenset)) else set()
    doubled = sorted({n for n, times in counts.items() if times > 1} | left_out)
    backwards = [(before, after) for before, after in pairwise(numbers) if after < before]
    if not doubled and not backwards:
        return None
    alternating, ranks = run.settings.get("epoch_series_alternate"), run.world_size
    if ranks is not None and ranks > 1 and set(counts.values()) == {ranks}:
        cause = f"each of {ranks} ranks writes"
        fix = "let only rank 0 write: if torch.distributed.get_rank() == 0"
    elif alternating is False or (alternating is None and len(backwards) == 1):
        cause = "the job was restarted"
        fix = "give every start its own folder, or remove the epochs that a checkpoint repeats"
    else:
        cause = "two jobs wrote it"
        fix = "give every job its own folder (its id in the path), and measure again"
    shown = ", ".join(map(str, doubled[:8])) + (", ..." if len(doubled) > 8 else "")
    what = f"{counted(len(doubled), 'epoch')} twice" if doubled else "epochs that go backwards"
    often = f", and so on, {len(backwards)} times in all" if len(backwards) > 1 else ""
    return finding(
        f"{run.run_id}: {what} in one metrics file, probably because {cause}",
        shown and f"written more than once: epoch {shown}",
        bool(backwards) and f"epoch {backwards[0][1]} follows epoch {backwards[0][0]}{often}",
        written_by_several(run)
        and "no row states whose it is: tables leave out the time of an epoch and the best accuracy",
        severity="problem",
        confidence="certain: epoch numbers repeat or decrease; the writer is likely",
        advice=[fix],
        of=run,
        priority="wrong",
        wrong_runs=(run.run_id,),
    )


RULE = Rule(
    symptom="two jobs or several ranks wrote one metrics file",
    needs=("runs",),
    look=check,
    folded=True,
    decided_by="an epoch twice, or before its predecessor",
    protocol=1,
)
