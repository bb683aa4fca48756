"""One comparison mixes strong and weak scaling.

What
----
Runs that refer to one baseline, some with the same global batch (strong scaling), others with the same batch per rank
(weak); a run whose batches contradict its stated kind of scaling; a run with neither batch of the baseline.

Why
---
Strong scaling divides a fixed amount of work per step, and its efficiency must fall with the ranks; weak scaling adds
work and mostly looks better. A curve through points of both shows neither. Weak scaling also makes fewer updates per
epoch, so equal epochs are not equal training.

Known problems
--------------
Batches that a source does not record cannot be checked. A data set that grows with the ranks is weak scaling too, with
any batch.

References
----------
docs/reference/metrics.md, Scaling: always say which. Gustafson, Reevaluating Amdahl's law, CACM 31(5), 1988.
"""

from __future__ import annotations

from stepscope.diagnose.rule import Rule, Statement, advise
from stepscope.records.finding import Finding, Skipped
from stepscope.records.nouns import Scaling
from stepscope.results.evidence import Evidence
from stepscope.results.pairs import Pair, pairs


def check(evidence: Evidence) -> Statement:
    compared = [pair for pair in pairs(evidence) if pair.relative > 1]
    kinds = {pair.run.run_id: _by_batches(pair) for pair in compared}
    stated = [p for p in compared if p.row.scaling is not None or kinds[p.run.run_id] is not None]
    if not stated:
        return Skipped(
            reason="no run with a baseline records its batches or its kind of scaling",
            command="stepscope bench --preset strong-scaling",
        )
    findings = [_contradiction(pair) for pair in stated if _contradicts(pair)]
    by_base: dict[str, list[Pair]] = {}
    for pair in stated:
        if not _contradicts(pair):
            by_base.setdefault(pair.base.run_id, []).append(pair)
    findings += [_mixed(group) for group in by_base.values() if len({pair.row.scaling for pair in group} - {None}) > 1]
    if findings:
        return findings
    shown = sorted({pair.row.scaling or "unknown" for pair in stated})
    return f"{len(stated)} runs, {' and '.join(shown)} scaling, never two on one baseline"


def _by_batches(pair: Pair) -> Scaling | str | None:
    """Return what the batches say: strong, weak, ``neither``; None where not both are known."""
    run, base = pair.run, pair.base
    if run.global_batch is None or base.global_batch is None:
        return None
    if run.global_batch == base.global_batch:
        return "strong"
    grown = run.global_batch * pair.row.baseline_world_size == base.global_batch * pair.row.world_size
    return "weak" if grown else "neither"


def _contradicts(pair: Pair) -> bool:
    by_batches = _by_batches(pair)
    return by_batches is not None and by_batches != pair.row.scaling


def _contradiction(pair: Pair) -> Finding:
    run, base, by_batches = pair.run, pair.base, _by_batches(pair)
    batches = f"global batch {run.global_batch} on {pair.ranks}, {base.global_batch} on {pair.base_ranks}"
    if by_batches == "neither":
        title = f"neither strong nor weak scaling: {batches}"
        sentences = (
            f"strong scaling keeps {base.global_batch}, weak scaling makes it {base.global_batch} x {pair.relative:g}",
        )
    else:
        title = f"called {pair.row.scaling} scaling, but its batches are those of {by_batches} scaling"
        sentences = (batches,)
    return Finding(
        severity="warning",
        title=title,
        evidence=(*sentences, f"the speed-up of {pair.speedup_text} mixes more ranks with another batch"),
        confidence="certain: from the batches",
        advice=(
            advise(
                "compare with a baseline of the same global batch (strong) or of the same batch per rank (weak)",
                "stepscope bench --preset strong-scaling",
            ),
        ),
        subject=pair.name,
        runs=(pair.run.run_id, pair.base.run_id),
        case="contradiction",
    )


def _mixed(group: list[Pair]) -> Finding:
    base = group[0].base
    sentences = [f"{pair.run.label}: {pair.row.scaling}, {pair.row.speedup:.2f}x" for pair in group[:6]]
    return Finding(
        severity="warning",
        title=f"strong and weak scaling in one comparison: {len(group)} runs against {base.label}",
        evidence=tuple(sentences),
        confidence="certain: from the batches or as stated",
        advice=(advise("plot and rate each kind separately, against its own baseline"),),
        subject=base.group,
        runs=(base.run_id, *(pair.run.run_id for pair in group)),
    )


RULE = Rule(
    symptom="one comparison mixes strong and weak scaling",
    needs=("scaling",),
    look=check,
    folded=True,
    decided_by="batches against what the pair is called",
    protocol=1,
)
