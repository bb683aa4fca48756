"""Exposed communication takes so much of the step that more ranks barely help.

What
----
Judges the fastest run of every group (model, data, precision) on each number of ranks. If communication was measured:
exposed communication (without waiting for the last rank, where the samples show it) above {exposed} rules out
"good" efficiency. If not: a speed-up below half of the ideal, together with a stated fact that makes communication the
likely cause: few samples per rank, short sequences, a small model.

The finding computes the batch, or the accumulation without synchronisation, at which the rest of the step is work: forward
and backward grow with the batch, gradients do not (activations of a pipeline or of tensor parallelism do, so no batch is
named there). If collectives were measured, their alpha-beta fit gives
the share of latency.

Why
---
A rank that waits for the network computes nothing, and the gradients are as large for 8 samples as for 800.

Known problems
--------------
The computed batch assumes that work grows in proportion to it. Kernels too small to fill the device grow less, so the
batch must be larger; with overlap a longer backward pass also hides more, so it may be smaller. Runs whose ranks train
on the same data look the same; `duplicated-data` reports them. A small model is not the cause if a run of the same size or
smaller scales well beside it.

References
----------
docs/reference/metrics.md, One step, Scaling. Li et al., PyTorch Distributed, VLDB 13(12), 2020,
section 3.2.4 (no_sync). A published case (text classifiers, 1 against 4 GPUs).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from stepscope.core.dataclass import record
from stepscope.core.errors import UsageError
from stepscope.core.units import format_duration, format_percent, format_size
from stepscope.core.words import counted, grouped
from stepscope.diagnose.commands import again, profiled
from stepscope.diagnose.job_facts import facts_of_run
from stepscope.diagnose.rule import GRAVE, Advices, Finding, Limit, Rule, Statement, advise, finding, skipped
from stepscope.records.nouns import EXPOSED_COMM
from stepscope.records.training import TrainingRun
from stepscope.results.cell_facts import exposed
from stepscope.results.epochs import PER_EPOCH, epoch_time, exposed_fraction, setting
from stepscope.results.evidence import Evidence, cell_of, name_of
from stepscope.results.pairs import Pair, pairs
from stepscope.results.scaling import shards

if TYPE_CHECKING:
    from stepscope.results.comm_costs import CommCosts

MAX_EXPOSED = Limit(GRAVE, unit="share of the step", source="the efficiency of what is left is rated good")
MAX_EFFICIENCY = Limit(
    0.50,
    unit="efficiency of a run whose communication was not timed",
    source="rated poor below; above, other losses may dominate",
)
SMALL_BATCH = Limit(
    32, unit="samples per rank and micro-step", source="published cases of jobs that did not scale: 32 to 128 per GPU"
)
MANY_TOKENS = Limit(
    32 * 512, unit="tokens per rank and micro-step", source="the limits of batch and sequence: as much work as both"
)
SHORT_SEQUENCE = Limit(512, unit="tokens", source="a published case: 128 tokens did not scale; 512 were assumed to")
SMALL_GRADIENTS = Limit(
    2**20,
    unit="bytes of gradients",
    source="8 A100 and 8 H100, nccl-tests logs: half of an all-reduce of 1 MiB is latency",
)
LEAST_FACTOR = 1.1
"""Times the work per reduction, below which more work does not help: the share is at its limit already."""

LATENCY_SHARE = Limit(0.50, unit="share of the all-reduce", source="if latency dominates, fewer bytes do not help")


@record
class _Cost:
    """One run's communication. share: of the step; cost_ns, step_ns: None where only an efficiency is known.

    fixed_ns: of the rest of the step, what does not grow with the batch (optimizer). causes: see :func:`_small_causes`.
    per: what the times are of. waiting_apart: the ranks also wait for each other, which is not in the share.
    """

    run: TrainingRun
    share: float
    sentences: tuple[str, ...]
    causes: dict[str, str]
    cost_ns: float | None = None
    step_ns: float | None = None
    fixed_ns: float = 0.0
    per: str = "step"
    waiting_apart: bool = False

    @property
    def measured(self) -> bool:
        return self.cost_ns is not None

    @property
    def factor(self) -> float:
        """How many times the batch makes 80% of the step work; infinite where what is sent grows with the batch."""
        if not facts_of_run(self.run).reduces_gradients:
            return math.inf
        target = 1 - MAX_EXPOSED
        if self.cost_ns is None or self.step_ns is None:
            return target * self.share / (1 - self.share) / (1 - target)
        work = self.step_ns - self.cost_ns - self.fixed_ns
        return (target / (1 - target) * self.cost_ns - self.fixed_ns) / work if work > 0 else math.inf

    @property
    def too_much(self) -> bool:
        if self.measured:
            return self.share > MAX_EXPOSED
        return 1 - self.share < MAX_EFFICIENCY and bool(self.causes)


def check(evidence: Evidence) -> Statement:
    costs = None
    if evidence.comm or evidence.calibration is not None:
        from stepscope.results.comm_costs import comm_costs

        costs = comm_costs(evidence)
    compared = {pair.run.run_id: pair for pair in pairs(evidence)}
    finished = [
        run for run in evidence.runs if run.status == "ok" and run.world_size is not None and run.world_size > 1
    ]
    alike = grouped(finished, lambda run: (run.group, run.world_size))
    fastest = [max(runs, key=_runs_pace) for runs in alike.values()]
    run_costs = [cost for run in fastest if (cost := _communication_cost(evidence, run, costs, compared)) is not None]
    if not run_costs:
        return skipped(
            f"no run on several ranks records its {EXPOSED_COMM}, or its speed-up and batch",
            "stepscope bench MATRIX.yaml",
        )
    left = [c for c in run_costs if c.run.run_id not in compared or not compared[c.run.run_id].copies]
    if not left:
        return f"{name_of(run_costs[0].run)}: duplicated data explains its epoch time"
    ranked = sorted(left, key=lambda c: -c.share)
    groups = grouped((c for c in ranked if c.too_much), lambda c: c.run.group)
    worst = ranked[0]
    what = "exposed" if worst.measured else "of the step is lost, without evidence that communication is the cause"
    return [_report(evidence, costs) for costs in groups.values()] or (
        f"{name_of(worst.run)}: {format_percent(worst.share)} {what}, limit {format_percent(MAX_EXPOSED)}"
    )


def _runs_pace(run: TrainingRun) -> float:
    if run.samples_per_s is not None:
        return run.samples_per_s.value
    time = run.step_ns or epoch_time(run)
    return 0.0 if time is None or time.value <= 0 else 1e9 / time.value


def _communication_cost(
    evidence: Evidence, run: TrainingRun, costs: CommCosts | None, compared: dict[str, Pair]
) -> _Cost | None:
    """Return the cost as the run's steps show it, or its epochs; else as its speed-up lets infer: what the ideal one lacks,
    and only with a fact that blames communication."""
    latency, in_words = _latency_share_and_text(costs, run)
    causes = _small_causes(evidence, run, latency)
    if run.exposed_comm_ns is not None and run.step_ns is not None and run.step_ns.value > 0:
        step, cost = run.step_ns.value, run.exposed_comm_ns.value
        cell = cell_of(evidence, run)
        net = None if cell is None else exposed(cell.result)
        waits = net is not None and net.waiting_ns > 0.02 * step
        cost = cost if net is None else min(cost, net.net_ns)
        after = f"waiting for the last rank takes another {format_duration(net.waiting_ns if net else 0)} per step"
        fixed = 0.0 if run.phases is None else run.phases.optimizer_ns + run.phases.other_ns
        return _Cost(
            run=run,
            share=min(cost / step, 1.0),
            cost_ns=cost,
            step_ns=step,
            fixed_ns=max(0.0, min(fixed, 0.9 * (step - cost))),
            sentences=(
                f"{EXPOSED_COMM} {format_duration(cost)} of a step of {format_duration(step)}: "
                f"{format_percent(cost / step)}",
                after if waits else "",
                in_words,
            ),
            causes=causes,
            waiting_apart=waits,
        )
    share, per_epoch = exposed_fraction(run), run.settings.get(PER_EPOCH)
    if share and per_epoch is not None:
        whole = per_epoch / share
        sentence = (
            f"communication {format_duration(per_epoch)} of an epoch of {format_duration(whole)}: "
            f"{format_percent(share)}, waiting for other ranks included"
        )
        sentences = (sentence, in_words)
        return _Cost(
            run=run, share=share, cost_ns=per_epoch, step_ns=whole, sentences=sentences, causes=causes, per="epoch"
        )
    pair = compared.get(run.run_id)
    if pair is None or pair.row.efficiency > 1:
        return None
    lost = 1 - pair.row.efficiency
    sentence = (
        f"speed-up {pair.speedup_text} on {pair.ranks}: {format_percent(pair.row.efficiency)} of ideal, so"
        f" {format_percent(lost)} of the step does not shrink with the ranks"
    )
    beside = any(_scales_beside(other, pair) for other in compared.values())
    return _Cost(run=run, share=lost, sentences=(sentence, in_words), causes={} if beside else causes)


def _scales_beside(other: Pair, pair: Pair) -> bool:
    """Whether a run that is no larger scales well on as many ranks: then size is not the cause."""
    return (
        other.row.group != pair.row.group
        and other.row.rating in ("good", "excellent")
        and other.row.world_size >= pair.row.world_size
        and _no_larger(other.run.num_parameters, pair.run.num_parameters)
        and _no_larger(other.run.micro_batch, pair.run.micro_batch)
    )


def _no_larger(other: int | None, own: int | None) -> bool:
    return other is None or own is None or other <= own


def _latency_share_and_text(costs: CommCosts | None, run: TrainingRun) -> tuple[float | None, str]:
    """Return (latency's share, in words) of one all-reduce of the step's gradients, by the measured collectives."""
    size = run.comm_bytes_per_step or _gradient_bytes(run)
    if costs is None or not size or run.world_size is None:
        return None, ""
    try:
        from stepscope.predict.calibrated import time_of

        whole = time_of(costs.calibration, "all_reduce", size, run.world_size).time_ns
        least = time_of(costs.calibration, "all_reduce", 1, run.world_size).time_ns
    except UsageError:
        return None, ""
    share = min(1.0, least / whole) if whole > 0 else 0.0
    return (
        share,
        f"one all-reduce of {format_size(size)} takes {format_duration(whole)} here, {format_percent(share)} of it latency",
    )


def _gradient_bytes(run: TrainingRun) -> int | None:
    if run.num_parameters is None:
        return None
    return run.num_parameters * (2 if run.precision in ("bf16", "fp16") else 4)


def _small_causes(evidence: Evidence, run: TrainingRun, latency: float | None) -> dict[str, str]:
    """Return what is too small -> the fact that says so, strongest first; empty where nothing known is small."""
    causes = {}
    batch, length = run.micro_batch, _sequence_length(evidence, run)
    enough = batch is not None and length is not None and batch * length >= MANY_TOKENS
    if batch is not None and batch < SMALL_BATCH and not enough:
        causes["batch too small"] = f"{counted(batch, 'sample')} per rank and micro-step, below {SMALL_BATCH:g}"
    gradients = run.comm_bytes_per_step or _gradient_bytes(run)
    if latency is not None:
        if latency >= LATENCY_SHARE:
            causes["model too small"] = f"{format_percent(latency)} of its all-reduce is latency"
    elif gradients is not None and gradients < SMALL_GRADIENTS:
        causes["model too small"] = f"its gradients are {format_size(gradients)}, mostly latency"
    if length is not None and length < SHORT_SEQUENCE and not enough:
        causes["sequence too short"] = f"{length} tokens, below {SHORT_SEQUENCE:g}"
    return causes


def _sequence_length(evidence: Evidence, run: TrainingRun) -> int | None:
    cell = cell_of(evidence, run)
    names = ("max_seq_len", "seq_len", "sequence_length", "max_length")
    value = setting({} if cell is None else cell.spec.model, *names) or setting(run.settings, *names)
    return value if isinstance(value, int) and value > 0 else None


def _report(evidence: Evidence, costs: list[_Cost]) -> Finding:
    worst, run = costs[0], costs[0].run
    named = ", ".join(worst.causes) or "nothing says that model, batch or sequence is too small"
    lost = EXPOSED_COMM if worst.measured else "lost, most likely to communication"
    rest = ", ".join(f"{c.run.label}: {format_percent(c.share)}" for c in costs[1:4])
    return finding(
        f"communication-bound: {format_percent(worst.share)} of the {worst.per} on {counted(run.world_size or 0, 'rank')}"
        f" is {lost}{' without waiting' if worst.waiting_apart else ''}; {named}",
        worst.sentences,
        [f"{cause}: {fact}" for cause, fact in worst.causes.items()],
        _needed_text(evidence, worst),
        rest and f"also {rest}",
        severity="problem",
        stake=worst.share,
        confidence=f"measured: {EXPOSED_COMM} of the fastest run on that many ranks"
        + (", waiting included" if worst.per == "epoch" else "")
        if worst.measured
        else "likely: inferred from the speed-up and the sizes; communication was not timed",
        advice=_communication_bound_advice(evidence, worst),
        of=run,
    )


def _needed_text(evidence: Evidence, cost: _Cost) -> str:
    """Say what reaches 80%: batch, accumulation, sequence."""
    run, factor = cost.run, cost.factor
    if not math.isfinite(factor) or factor < LEAST_FACTOR:
        return ""
    length = _sequence_length(evidence, run)
    ways = [
        run.micro_batch is not None
        and f"a batch of {_rounded_up(run.micro_batch * factor)} per rank (now {run.micro_batch})",
        run.accumulation is not None
        and f"accumulation of {_rounded_up(run.accumulation * factor)} (now {run.accumulation})",
        length is not None and f"sequences of {_rounded_up(length * factor)} tokens (now {length})",
    ]
    what = " or ".join(way for way in ways if way)
    return (
        f"{format_percent(1 - MAX_EXPOSED)} of the step is computation with {factor:.1f} times the work between two "
        f"reductions{what and f': {what}'}"
    )


def _rounded_up(value: float) -> int:
    """Return the next whole number, where rounding has not made one already."""
    return math.ceil(value - 1e-6)


def _communication_bound_advice(evidence: Evidence, cost: _Cost) -> list[Advices]:
    """Return what lowers the communication's share: larger batches, accumulation, overlap, another strategy."""
    run, factor = cost.run, cost.factor
    cell = cell_of(evidence, run)
    more = _rounded_up(factor) if math.isfinite(factor) and factor >= LEAST_FACTOR else None
    advice: list[Advices] = [
        not cost.measured and ("measure the communication first", None if cell is None else profiled(evidence, cell))
    ]
    if more is not None and cell is not None:
        spec = cell.spec
        strong = spec.batch_rule == "global_batch"
        per_rank = _rounded_up(spec.micro_batch * factor)
        larger = (
            ("global_batch", per_rank * spec.world_size * spec.accumulation) if strong else ("micro_batch", per_rank)
        )
        grown = [("global_batch", spec.global_batch * more)] if strong else []
        advice += [
            (f"larger batch, if memory and accuracy allow: {larger[0]} {larger[1]}", again(evidence, cell, larger)),
            advise(
                f"same memory: accumulate {spec.accumulation * more} micro-batches between reductions",
                again(evidence, cell, ("accumulation", spec.accumulation * more), *grown),
                only_for=("replicated",),
            ),
        ]
    elif more is not None:
        advice += [
            f"{more} times the batch per rank, if memory and accuracy allow: updates become fewer, scale the "
            "learning rate",
            advise(
                f"the same with {more} micro-batches accumulated between reductions (no_sync)", only_for=("replicated",)
            ),
        ]
    if run.device != "cpu" and run.precision not in ("bf16", "fp16") and "model too small" not in cost.causes:
        # Hooks are DDP's; what is sharded sends its parameters too.
        advice.append(
            "halve the bytes: gather and reduce in bf16 (mixed precision of the wrapper; AMP alone does not)"
            if shards(run.strategy)
            else "halve the bytes: a bf16 communication hook on DDP (AMP alone does not cut them)"
            if facts_of_run(run).replicated
            else "halve the bytes: send activations in bf16; keep these groups inside a host"
        )
    return [*advice, "use fewer ranks: a job that does not scale is cheaper on the ranks that it fills"]


RULE = Rule(
    symptom=f"{EXPOSED_COMM} takes too much of the step: model, batch or sequence too small for so many ranks",
    needs=("runs",),
    look=check,
    folded=True,
    kind="communication-bound",
    protocol=2,
    thresholds={
        "exposed": MAX_EXPOSED,
        "efficiency": MAX_EFFICIENCY,
        "batch": SMALL_BATCH,
        "tokens": MANY_TOKENS,
        "sequence": SHORT_SEQUENCE,
        "gradients": SMALL_GRADIENTS,
        "latency": LATENCY_SHARE,
    },
)
