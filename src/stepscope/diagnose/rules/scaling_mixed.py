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

from stepscope.core.words import grouped
from stepscope.diagnose.rule import Finding, Rule, Statement, finding, skipped
from stepscope.results.evidence import Evidence
from stepscope.results.pairs import Pair, pairs


def check(evidence: Evidence) -> Statement:
    """Look for: one comparison mixes strong and weak scaling."""
    compared = [(pair, _by_batches(pair)) for pair in pairs(evidence) if pair.relative > 1]
    stated = [(pair, kind) for pair, kind in compared if pair.row.scaling is not None or kind is not None]
    if not stated:
        return skipped(
            "no run with a baseline records its batches or its kind of scaling",
            "stepscope bench --preset strong-scaling",
        )
    findings = [
        _contradiction_finding(pair, kind) for pair, kind in stated if kind is not None and kind != pair.row.scaling
    ]
    sound = grouped((p for p, kind in stated if kind in (None, p.row.scaling)), lambda pair: pair.base.run_id)
    findings += [
        finding(
            f"strong and weak scaling in one comparison: {len(group)} runs against {group[0].base.label}",
            [f"{pair.run.label}: {pair.row.scaling}, {pair.row.speedup:.2f}x" for pair in group[:6]],
            confidence="certain: from the batches or as stated",
            advice=["plot and rate each kind separately, against its own baseline"],
            of=group[0].base.group,
            runs=(group[0].base.run_id, *(pair.run.run_id for pair in group)),
        )
        for group in sound.values()
        if len({pair.row.scaling for pair in group} - {None}) > 1
    ]
    shown = sorted({pair.row.scaling or "unknown" for pair, _ in stated})
    return findings or f"{len(stated)} runs, {' and '.join(shown)} scaling, never two on one baseline"


def _by_batches(pair: Pair) -> str | None:
    """Return what the batches say: strong, weak, ``neither``; None where not both are known."""
    run, base = pair.run, pair.base
    if run.global_batch is None or base.global_batch is None:
        return None
    if run.global_batch == base.global_batch:
        return "strong"
    grown = run.global_batch * pair.row.baseline_world_size == base.global_batch * pair.row.world_size
    return "weak" if grown else "neither"


def _contradiction_finding(pair: Pair, by_batches: str) -> Finding:
    run, base = pair.run, pair.base
    batches = f"global batch {run.global_batch} on {pair.ranks}, {base.global_batch} on {pair.base_ranks}"
    neither = by_batches == "neither"
    return finding(
        f"neither strong nor weak scaling: {batches}"
        if neither
        else f"called {pair.row.scaling} scaling, but its batches are those of {by_batches} scaling",
        f"strong scaling keeps {base.global_batch}, weak scaling makes it {base.global_batch} x {pair.relative:g}"
        if neither
        else batches,
        f"the speed-up of {pair.speedup_text} mixes more ranks with another batch",
        confidence="certain: from the batches",
        advice=[
            (
                "compare with a baseline of the same global batch (strong) or of the same batch per rank (weak)",
                "stepscope bench --preset strong-scaling",
            )
        ],
        of=(run, base),
        case="contradiction",
    )


RULE = Rule(
    symptom="one comparison mixes strong and weak scaling",
    needs=("scaling",),
    look=check,
    folded=True,
    decided_by="batches against what the pair is called",
    protocol=1,
)
