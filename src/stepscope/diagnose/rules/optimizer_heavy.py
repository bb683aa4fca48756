"""The optimizer takes a large share of the step.

What
----
Share of the step from usable gradients to updated parameters, slowest rank, median over steps.

Why
---
The update reads and writes each parameter, its gradient and the optimizer state once, regardless of the batch, and
every rank updates its full replica, so the time does not shrink with more ranks. It is large if the batch is small for
the model or if the update runs one kernel per tensor.

Known problems
--------------
Gradient clipping and loss scaling are part of the phase. So are ZeRO-1's broadcasts of updated parameters: how its time
splits is seen in traces.

References
----------
torch.optim: fused and foreach implementations. Rajbhandari et al., ZeRO, SC20 (stage 1: each rank updates 1/n).
"""

from __future__ import annotations

from stepscope.core.units import format_count, format_duration, format_percent
from stepscope.core.words import counted
from stepscope.diagnose.bounds import LIMITS, over_share
from stepscope.diagnose.commands import again
from stepscope.diagnose.rule import Finding, Rule, Statement, advise, finding
from stepscope.results.cell_facts import TimedCell, measured, others, traced
from stepscope.results.evidence import Evidence

SENDS_INSIDE = frozenset({"zero1"})
"""Strategies whose plan has collectives in the phase of the optimizer."""

_NAMES = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}


def check(evidence: Evidence) -> Statement:
    return over_share(evidence, "optimizer-bound", "optimizer", _optimizer_heavy_finding, spent="of the step")


def _optimizer_heavy_finding(evidence: Evidence, ranked: list[TimedCell]) -> Finding:
    """Return the finding, with evidence, stake and advice: the optimizer takes a large share of the step."""
    cell, n = ranked[0], ranked[0].world_size
    spec, parameters, share = cell.spec, cell.run.num_parameters, cell.share("optimizer")
    size = "" if parameters is None else f" over {format_count(parameters)} parameters"
    sends = spec.strategy in SENDS_INSIDE and n > 1
    grown = (("global_batch", 2 * spec.global_batch),) if spec.batch_rule == "global_batch" else ()
    return finding(
        f"{format_percent(share)} of the step is the optimizer update"
        + (" and the broadcasts of new parameters" if sends else ""),
        f"{format_duration(cell.phases.optimizer_ns)} of {format_duration(cell.step_ns)}: {spec.optimizer}{size}, "
        f"once for {counted(spec.global_batch, 'sample')}",
        spec.clip is not None and f"this includes clipping to a norm of {spec.clip:g}",
        sends
        and f"{spec.strategy} sends the updated parameters in this phase: how much of it is transfer, traces show",
        others(ranked, lambda other: f"({format_percent(other.share('optimizer'))})"),
        severity="warning",
        stake=share,
        confidence=f"{measured(cell)}; the gain depends on the remedy",
        advice=[
            (
                "update less often: accumulate gradients over several micro-steps (the global batch grows with it)",
                again(evidence, cell.cell, ("accumulation", 2 * spec.accumulation), *grown),
            ),
            spec.device == "cuda"
            and not sends
            and (
                "use one kernel for all tensors: "
                f"torch.optim.{_NAMES.get(spec.optimizer, spec.optimizer)}(..., fused=True)"
            ),
            n > 1
            and advise(
                f"shard the update (ZeRO stage 1): each rank updates 1/{n}, up to "
                f"{format_percent(share * (n - 1) / n)} of the step, for the time of an all-gather",
                only_for=("replicated",),
            ),
        ],
        of=cell.run,
        job=traced(evidence, cell),
    )


RULE = Rule(
    symptom="the optimizer takes a large share of the step",
    needs=("cells",),
    look=check,
    claims=("computation",),
    within=("memory-bandwidth-bound",),
    kind="optimizer-bound",
    protocol=2,
    thresholds={"share": LIMITS["cell"]["optimizer-bound"]},
)
