"""Activations are computed twice though there is memory to keep them.

What
----
Cells with activation checkpointing whose peak would stay below {room%} of the capacity with all activations kept: the
planned activations of the mode ``none`` (or counted ones of the same cell without checkpointing) against those that are
kept.

Why
---
Full checkpointing runs the forward pass a second time, up to a third more FLOP: MFU falls while HFU does not.

Known problems
--------------
Quiet where the kept activations would not fit, whatever the time. Longer sequences or a larger micro-batch, which the saved
memory may be meant for, change the answer. The allocator's fragments grow with the peak.

References
----------
metrics.md, Headline figures. Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016. Korthikanti et al., Reducing
Activation Recomputation in Large Transformer Models, MLSys 2023.
"""

from __future__ import annotations

from stepscope.core.units import format_bytes_binary, format_percent
from stepscope.diagnose.commands import again
from stepscope.diagnose.rule import Finding, Limit, Rule, Statement, finding, skipped
from stepscope.predict.specs import specs_of
from stepscope.results.cell_facts import memory_share, same_but, times_faster
from stepscope.results.evidence import CellEvidence, Evidence
from stepscope.results.held import held_by

ROOM = Limit(
    0.80, unit="peak / capacity", source="near-oom warns from 90% on; 10% more for fragments and other libraries"
)


def check(evidence: Evidence) -> Statement:
    """Look for: activations are recomputed though memory is free."""
    cells = [c for c in evidence.cells if c.run.status == "ok" and c.spec.activation_checkpointing != "none"]
    if not cells:
        return skipped("no cell recomputes activations", "stepscope bench --preset checkpointing")
    judged = [(cell, *peak) for cell in cells if (peak := _peak_with_all(evidence, cell)) is not None]
    if not judged:
        return skipped("no memory peak, no capacity, or no plan of the activations is known")
    fullest, _, most = max(judged, key=lambda case: case[2])
    reports = (
        _checkpointing_without_need_finding(evidence, cell, more, share)
        for cell, more, share in judged
        if share <= ROOM
    )
    return [report for report in reports if report] or (
        f"{fullest.run.label}: all activations kept, {format_percent(most)} of the memory would be in use, limit "
        f"{format_percent(ROOM)}, or they cost no time"
    )


def _peak_with_all(evidence: Evidence, cell: CellEvidence) -> tuple[int, float] | None:
    """Return the bytes that keeping all activations adds to a rank, and the share of the capacity that would be in use."""
    kept, mode = specs_of(cell.spec).facts.activations, cell.spec.activation_checkpointing
    plain = same_but(evidence, cell, activation_checkpointing="none")
    both = [variant and held_by(variant) for variant in (plain, cell)]
    counted = [memory.sizes.get("activations") if memory else None for memory in both]
    if counted[0] is not None and counted[1] is not None:
        more = counted[0] - counted[1]
    elif "none" in kept and mode in kept:
        more = cell.spec.micro_batch * (sum(kept["none"].values()) - sum(kept[mode].values()))
    else:
        return None
    share = memory_share(cell, evidence.environment, more_bytes=more)
    return None if share is None else (more, share)


def _checkpointing_without_need_finding(
    evidence: Evidence, cell: CellEvidence, more: int, share: float
) -> Finding | None:
    """Return the finding, with evidence, stake and advice: activations are recomputed though memory is free; None: it is
    not worth one."""
    facts, mode = specs_of(cell.spec).facts, cell.spec.activation_checkpointing
    again_flops = facts.recomputed_flops_per_sample.get(mode, 0)
    plain = same_but(evidence, cell, activation_checkpointing="none")
    gain = None if plain is None else times_faster(plain, cell)
    if gain is None and (plain is not None or not again_flops):
        return None  # measured, and it costs no time for certain; or nothing says that it costs any
    stake = again_flops / (facts.train_flops_per_sample + again_flops) if gain is None else 1 - 1 / gain
    return finding(
        f"{mode} activation checkpointing is not needed: without it {format_percent(1 - share)} of memory is free",
        f"all activations kept: {format_bytes_binary(max(more, 0))} more a rank, {format_percent(share)} of the "
        "capacity in use at the peak",
        f"{format_percent(stake)} of the FLOP are computed again"
        if gain is None
        else f"a step takes {gain:.2f}x as long as without, and the intervals do not overlap",
        severity="warning",
        stake=stake,
        confidence="measured" if gain is not None else "from planned FLOP: the step without was not measured",
        advice=[
            ("keep all activations", again(evidence, cell, ("activation_checkpointing", "none"))),
            "or use the memory: a larger micro-batch, a longer sequence",
        ],
        of=cell.run,
    )


RULE = Rule(
    symptom="activations are recomputed though memory is free",
    needs=("cells",),
    look=check,
    folded=True,
    protocol=3,
    thresholds={"room": ROOM},
)
