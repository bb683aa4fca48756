"""Sharding costs communication and saves little memory: what it divides is small against activations.

What
----
Cells whose strategy divides training state over data-parallel ranks (ZeRO-1, FSDP2, HSDP): what a rank holds, counted
tensor by tensor, against the same with whole parameters, gradients and optimizer state. Fires when a rank saves less than
{little%} and pays for it: the same cell under DDP is surely times_faster, or where there is none, more bytes travel.

Why
---
ZeRO and FSDP divide parameters, gradients and optimizer state. Activations stay as they are: with a small model, plain SGD
or a large batch, the extra gathers and broadcasts buy nothing.

Known problems
--------------
Quiet where the whole state would not fit into the device: there the little that it saves decides. A longer sequence or a
larger model changes the answer. Tensor and pipeline parallelism divide activations, too, and are not judged.

References
----------
metrics.md, Headline figures. Rajbhandari et al., ZeRO, SC20 (section 5: bytes by stage). docs/howto/which-sharding.md.
"""

from __future__ import annotations

from stepscope.core.units import format_bytes, format_percent
from stepscope.diagnose.commands import again
from stepscope.diagnose.rule import Finding, Limit, Rule, Statement, finding, skipped
from stepscope.predict.specs import specs_of
from stepscope.results.cell_facts import NEAR_CAPACITY, memory_share, same_but, times_faster
from stepscope.results.evidence import Evidence
from stepscope.results.held import Held, held_by
from stepscope.strategies import memory

LITTLE = Limit(
    0.10,
    unit="share of what a rank would hold unsharded",
    source="near-oom keeps as much of the capacity free: a smaller saving decides no fit",
)
SHARDED = ("zero1", "fsdp2", "hsdp")


def check(evidence: Evidence) -> Statement:
    """Look for: sharding saves little memory for its communication."""
    holdings = [holding for cell in evidence.cells if cell.spec.strategy in SHARDED and (holding := held_by(cell))]
    judged = [
        (holding, 1 - holding.total / (_unsharded_bytes(holding) + holding.sizes["activations"]))
        for holding in holdings
        if holding.total is not None
    ]
    if not judged:
        return skipped("no sharded cell counted its tensors", "stepscope bench --preset zero-stages")
    least, little = min(judged, key=lambda pair: pair[1])
    reports = (
        _sharding_saves_little_finding(evidence, holding, saved)
        for holding, saved in judged
        if saved < LITTLE and not _is_needed(evidence, holding)
    )
    return [report for report in reports if report] or (
        f"{least.cell.run.label}: a rank saves {format_percent(little)}, or what it saves is free or needed"
    )


def _unsharded_bytes(holding: Held) -> int:
    """Bytes of the state that a rank would hold unsharded."""
    specs = specs_of(holding.cell.spec)
    return memory(specs.facts, specs.setting).total_bytes


def _is_needed(evidence: Evidence, holding: Held) -> bool:
    """Whether the whole state would come near the capacity."""
    more = _unsharded_bytes(holding) + holding.sizes["activations"] - (holding.total or 0)
    share = memory_share(holding.cell, evidence.environment, more_bytes=more)
    return share is not None and share > NEAR_CAPACITY


def _sharding_saves_little_finding(evidence: Evidence, holding: Held, saved: float) -> Finding | None:
    """Return the finding, with evidence, stake and advice: sharding saves little memory for its communication; None: it is
    not worth one."""
    cell, specs = holding.cell, specs_of(holding.cell.spec)
    plain = same_but(evidence, cell, strategy="ddp", strategy_options={}, mesh={})
    gain = None if plain is None else times_faster(plain, cell)
    if plain is not None and gain is None:
        return None  # measured, and it costs no time for certain
    return finding(
        f"{cell.spec.strategy} saves {format_percent(max(saved, 0.0))} of a rank's memory",
        f"parameters, gradients and optimizer: {format_bytes(holding.states)} a rank in place of "
        f"{format_bytes(_unsharded_bytes(holding))}; activations stay {format_bytes(holding.sizes['activations'])}",
        f"it sends {format_bytes(specs.comm_bytes_per_step)} a step, ddp {format_bytes(specs.facts.gradient_bytes)}"
        if gain is None
        else f"a step takes {gain:.2f}x as long as with ddp, and the intervals do not overlap",
        severity="warning",
        stake=None if gain is None else 1 - 1 / gain,
        confidence="measured"
        if gain is not None
        else "from counted tensors and planned bytes; the time was not compared",
        advice=[
            (
                "keep the whole model on each rank: ddp",
                again(evidence, cell, ("strategy", "ddp"), *((("mesh", {}),) if cell.spec.mesh else ())),
            ),
            "where memory is short, recompute activations: they are what is large here",
        ],
        of=cell.run,
    )


RULE = Rule(
    symptom="sharding saves little memory for its communication",
    needs=("cells",),
    look=check,
    folded=True,
    protocol=3,
    thresholds={"little": LITTLE},
)
