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
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.core.errors import UsageError
from stepscope.core.units import format_duration, format_percent, format_size
from stepscope.core.words import counted
from stepscope.diagnose.commands import again, profiled
from stepscope.diagnose.job_facts import facts_of_run
from stepscope.diagnose.rule import Limit, Rule, Statement, advise
from stepscope.diagnose.trace_facts import GRAVE
from stepscope.records.finding import Advice, Finding, Skipped
from stepscope.records.nouns import EXPOSED_COMM
from stepscope.records.training import TrainingRun
from stepscope.results.cell_facts import exposed
from stepscope.results.epochs import PER_EPOCH, epoch_time, exposed_fraction, setting
from stepscope.results.evidence import Evidence, cell_of, name_of
from stepscope.results.pairs import Pair, pairs
from stepscope.results.scaling import shards

if TYPE_CHECKING:
    from stepscope.results.comm_costs import CommCosts

MAX_EXPOSED = Limit(value=GRAVE, unit="share of the step", source="the efficiency of what is left is rated good")
MAX_EFFICIENCY = Limit(
    value=0.50,
    unit="efficiency of a run whose communication was not timed",
    source="rated poor below; above, other losses may dominate",
)
SMALL_BATCH = Limit(
    value=32,
    unit="samples per rank and micro-step",
    source="published cases of jobs that did not scale: 32 to 128 per GPU",
)
MANY_TOKENS = Limit(
    value=32 * 512,
    unit="tokens per rank and micro-step",
    source="the limits of batch and sequence: as much work as both",
)
SHORT_SEQUENCE = Limit(
    value=512, unit="tokens", source="a published case: 128 tokens did not scale; 512 were assumed to"
)
SMALL_GRADIENTS = Limit(
    value=2**20,
    unit="bytes of gradients",
    source="8 A100 and 8 H100, nccl-tests logs: half of an all-reduce of 1 MiB is latency",
)
LEAST_FACTOR = 1.1
"""Times the work per reduction, below which more work does not help: the share is at its limit already."""

LATENCY_SHARE = Limit(
    value=0.50, unit="share of the all-reduce", source="if latency dominates, fewer bytes do not help"
)


_WAITING = {"epoch": ", waiting included"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cost:
    """One run's communication. share: of the step; cost_ns, step_ns: None where only an efficiency is known.

    fixed_ns: of the rest of the step, what does not grow with the batch (optimizer). causes: see :func:`_causes`. per: what
    the times are of. waiting_apart: the ranks also wait for each other, which is not in the share.
    """

    run: TrainingRun
    share: float
    cost_ns: float | None
    step_ns: float | None
    fixed_ns: float
    measured: bool
    sentences: tuple[str, ...]
    causes: tuple[tuple[str, str], ...]
    per: str = "step"
    waiting_apart: bool = False

    @property
    def factor(self) -> float:
        """How many times the batch makes 80% of the step work; infinite where what is sent grows with the batch."""
        if not facts_of_run(self.run).reduces_gradients:
            return math.inf
        target = 1 - MAX_EXPOSED.value
        if self.cost_ns is None or self.step_ns is None:
            return target * self.share / (1 - self.share) / (1 - target)
        work = self.step_ns - self.cost_ns - self.fixed_ns
        return (target / (1 - target) * self.cost_ns - self.fixed_ns) / work if work > 0 else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """The evidence, and what is worked out from it once for all runs."""

    evidence: Evidence
    costs: CommCosts | None
    pairs: tuple[Pair, ...]


def check(evidence: Evidence) -> Statement:
    costs = None
    if evidence.comm or evidence.calibration is not None:
        from stepscope.results.comm_costs import comm_costs

        costs = comm_costs(evidence)
    facts = _Facts(evidence=evidence, costs=costs, pairs=pairs(evidence))
    run_costs = [
        cost for run in _fastest(evidence.runs) if (cost := _measured(facts, run) or _inferred(facts, run)) is not None
    ]
    if not run_costs:
        return Skipped(
            reason=f"no run on several ranks records its {EXPOSED_COMM}, or its speed-up and batch",
            command="stepscope bench MATRIX.yaml",
        )
    explained = {pair.run.run_id for pair in facts.pairs if pair.copies}
    firing = [c for c in run_costs if _too_much(c) and c.run.run_id not in explained]
    if firing:
        groups: dict[str, list[_Cost]] = {}
        for cost in sorted(firing, key=lambda c: -c.share):
            groups.setdefault(cost.run.group, []).append(cost)
        return [_report(evidence, costs) for costs in groups.values()]
    left = [c for c in run_costs if c.run.run_id not in explained]
    if not left:
        return f"{name_of(run_costs[0].run)}: duplicated data explains its epoch time"
    worst = max(left, key=lambda c: c.share)
    what = "exposed" if worst.measured else "of the step is lost, without evidence that communication is the cause"
    return f"{name_of(worst.run)}: {format_percent(worst.share)} {what}, limit {format_percent(MAX_EXPOSED.value)}"


def _fastest(runs: Iterable[TrainingRun]) -> list[TrainingRun]:
    """The fastest finished run of every group on every number of ranks above 1."""
    best: dict[tuple[str, int], TrainingRun] = {}
    for run in runs:
        if run.status != "ok" or run.world_size is None or run.world_size < 2:
            continue
        before = best.get((run.group, run.world_size))
        if before is None or _pace(run) > _pace(before):
            best[run.group, run.world_size] = run
    return list(best.values())


def _pace(run: TrainingRun) -> float:
    if run.samples_per_s is not None:
        return run.samples_per_s.value
    time = run.step_ns or epoch_time(run)
    return 0.0 if time is None or time.value <= 0 else 1e9 / time.value


def _measured(facts: _Facts, run: TrainingRun) -> _Cost | None:
    if run.exposed_comm_ns is None or run.step_ns is None or run.step_ns.value <= 0:
        return _by_epoch(facts, run)
    step, cost = run.step_ns.value, run.exposed_comm_ns.value
    cell = cell_of(facts.evidence, run)
    net = None if cell is None else exposed(cell.result)
    sentences = []
    waits = net is not None and net.waiting_ns > 0.02 * step
    if net is not None:
        cost = min(cost, net.net_ns)
        if waits:
            sentences.append(f"waiting for the last rank takes another {format_duration(net.waiting_ns)} per step")
    share = cost / step
    sentences.insert(
        0,
        f"{EXPOSED_COMM} {format_duration(cost)} of a step of {format_duration(step)}: {format_percent(share)}",
    )
    fixed = 0.0
    if run.phases is not None:
        fixed = max(0.0, min(run.phases.optimizer_ns + run.phases.other_ns, 0.9 * (step - cost)))
    latency, in_words = _latency(facts, run)
    return _Cost(
        run=run,
        share=min(share, 1.0),
        cost_ns=cost,
        step_ns=step,
        fixed_ns=fixed,
        measured=True,
        sentences=(*sentences, *in_words),
        causes=_causes(facts.evidence, run, latency),
        waiting_apart=waits,
    )


def _by_epoch(facts: _Facts, run: TrainingRun) -> _Cost | None:
    """Return the cost where the source timed the communication of an epoch, not of a step."""
    share, per_epoch = exposed_fraction(run), run.settings.get(PER_EPOCH)
    if not share or per_epoch is None:
        return None
    sentence = (
        f"communication {format_duration(per_epoch)} of an epoch of {format_duration(per_epoch / share)}: "
        f"{format_percent(share)}, waiting for other ranks included"
    )
    latency, in_words = _latency(facts, run)
    return _Cost(
        run=run,
        share=share,
        cost_ns=per_epoch,
        step_ns=per_epoch / share,
        fixed_ns=0.0,
        measured=True,
        sentences=(sentence, *in_words),
        causes=_causes(facts.evidence, run, latency),
        per="epoch",
    )


def _inferred(facts: _Facts, run: TrainingRun) -> _Cost | None:
    """Infer the cost from the speed-up alone: what the ideal one lacks, and only with a fact that blames communication."""
    pair = next((p for p in facts.pairs if p.run.run_id == run.run_id), None)
    if pair is None or pair.row.efficiency > 1:
        return None
    latency, in_words = _latency(facts, run)
    sentence = (
        f"speed-up {pair.speedup_text} on {pair.ranks}: {format_percent(pair.row.efficiency)} of ideal, so"
        f" {format_percent(1 - pair.row.efficiency)} of the step does not shrink with the ranks"
    )
    return _Cost(
        run=run,
        share=1 - pair.row.efficiency,
        cost_ns=None,
        step_ns=None,
        fixed_ns=0.0,
        measured=False,
        sentences=(sentence, *in_words),
        causes=() if _scales_beside(facts, pair) else _causes(facts.evidence, run, latency),
    )


def _too_much(cost: _Cost) -> bool:
    if cost.measured:
        return cost.share > MAX_EXPOSED.value
    return 1 - cost.share < MAX_EFFICIENCY.value and bool(cost.causes)


def _scales_beside(facts: _Facts, pair: Pair) -> bool:
    """Whether a run that is no larger scales well on as many ranks: then size is not the cause."""
    parameters = pair.run.num_parameters
    return any(
        other.row.group != pair.row.group
        and other.row.rating in ("good", "excellent")
        and other.row.world_size >= pair.row.world_size
        and _no_larger(other.run.num_parameters, parameters)
        and _no_larger(other.run.micro_batch, pair.run.micro_batch)
        for other in facts.pairs
    )


def _no_larger(other: int | None, own: int | None) -> bool:
    return other is None or own is None or other <= own


def _latency(facts: _Facts, run: TrainingRun) -> tuple[float | None, tuple[str, ...]]:
    """Return (latency's share, in words) of one all-reduce of the step's gradients, by the measured collectives."""
    size = run.comm_bytes_per_step or _gradient_bytes(run)
    costs = facts.costs
    if costs is None or not size or run.world_size is None:
        return None, ()
    try:
        from stepscope.predict.calibrated import time_of

        whole = time_of(costs.calibration, "all_reduce", size, run.world_size).time_ns
        least = time_of(costs.calibration, "all_reduce", 1, run.world_size).time_ns
    except UsageError:
        return None, ()
    share = min(1.0, least / whole) if whole > 0 else 0.0
    return share, (
        f"one all-reduce of {format_size(size)} takes {format_duration(whole)} here, {format_percent(share)} of it latency",
    )


def _gradient_bytes(run: TrainingRun) -> int | None:
    if run.num_parameters is None:
        return None
    return run.num_parameters * (2 if run.precision in ("bf16", "fp16") else 4)


def _causes(evidence: Evidence, run: TrainingRun, latency: float | None) -> tuple[tuple[str, str], ...]:
    """Return (what is too small, the fact that says so), strongest first; empty where nothing known is small."""
    causes = []
    length = _sequence(evidence, run)
    enough = run.micro_batch is not None and length is not None and run.micro_batch * length >= MANY_TOKENS.value
    if run.micro_batch is not None and run.micro_batch < SMALL_BATCH.value and not enough:
        causes.append(
            (
                "batch too small",
                f"{counted(run.micro_batch, 'sample')} per rank and micro-step, below {SMALL_BATCH.value:g}",
            )
        )
    gradients = run.comm_bytes_per_step or _gradient_bytes(run)
    if latency is not None:
        if latency >= LATENCY_SHARE.value:
            causes.append(("model too small", f"{format_percent(latency)} of its all-reduce is latency"))
    elif gradients is not None and gradients < SMALL_GRADIENTS.value:
        causes.append(("model too small", f"its gradients are {format_size(gradients)}, mostly latency"))
    if length is not None and length < SHORT_SEQUENCE.value and not enough:
        causes.append(("sequence too short", f"{length} tokens, below {SHORT_SEQUENCE.value:g}"))
    return tuple(causes)


def _sequence(evidence: Evidence, run: TrainingRun) -> int | None:
    cell = cell_of(evidence, run)
    names = ("max_seq_len", "seq_len", "sequence_length", "max_length")
    value = setting({} if cell is None else cell.spec.model, *names) or setting(run.settings, *names)
    return value if isinstance(value, int) and value > 0 else None


def _report(evidence: Evidence, costs: list[_Cost]) -> Finding:
    worst, run = costs[0], costs[0].run
    causes = worst.causes
    named = ", ".join(cause for cause, _ in causes) or "nothing says that model, batch or sequence is too small"
    rest = [f"{c.run.label}: {format_percent(c.share)}" for c in costs[1:4]]
    lost = EXPOSED_COMM if worst.measured else "lost, most likely to communication"
    lost += " without waiting" if worst.waiting_apart else ""
    return Finding(
        severity="problem",
        title=f"communication-bound: {format_percent(worst.share)} of the {worst.per} on"
        f" {counted(run.world_size or 0, 'rank')}"
        f" is {lost}; {named}",
        evidence=(
            *worst.sentences,
            *(f"{cause}: {fact}" for cause, fact in causes),
            *_needed(evidence, worst),
            *((f"also {', '.join(rest)}",) if rest else ()),
        ),
        stake_fraction=worst.share,
        confidence=f"measured: {EXPOSED_COMM} of the fastest run on that many ranks{_WAITING.get(worst.per, '')}"
        if worst.measured
        else "likely: inferred from the speed-up and the sizes; communication was not timed",
        advice=_advice(evidence, worst),
        subject=name_of(run),
        runs=(run.run_id,),
    )


def _needed(evidence: Evidence, cost: _Cost) -> tuple[str, ...]:
    """Say what reaches 80%: batch, accumulation, sequence."""
    run, factor = cost.run, cost.factor
    if not math.isfinite(factor) or factor < LEAST_FACTOR:
        return ()
    ways = []
    if run.micro_batch is not None:
        ways.append(f"a batch of {_up(run.micro_batch * factor)} per rank (now {run.micro_batch})")
    if run.accumulation is not None:
        ways.append(f"accumulation of {_up(run.accumulation * factor)} (now {run.accumulation})")
    length = _sequence(evidence, run)
    if length is not None:
        ways.append(f"sequences of {_up(length * factor)} tokens (now {length})")
    what = f": {' or '.join(ways)}" if ways else ""
    return (
        f"{format_percent(1 - MAX_EXPOSED.value)} of the step is computation with {factor:.1f} times the work between two "
        f"reductions{what}",
    )


def _up(value: float) -> int:
    """Return the next whole number, where rounding has not made one already."""
    return math.ceil(value - 1e-6)


def _advice(evidence: Evidence, cost: _Cost) -> tuple[Advice, ...]:
    run, factor = cost.run, cost.factor
    cell = cell_of(evidence, run)
    more = _up(factor) if math.isfinite(factor) and factor >= LEAST_FACTOR else None
    advice: list[Advice] = []
    if more is not None and cell is not None:
        strong = cell.result.spec.batch_rule == "global_batch"
        per_rank = _up(cell.spec.micro_batch * factor)
        ranks = cell.spec.world_size * cell.spec.accumulation
        larger = ("global_batch", per_rank * ranks) if strong else ("micro_batch", per_rank)
        accumulated = [("accumulation", cell.spec.accumulation * more)]
        if strong:
            accumulated.append(("global_batch", cell.spec.global_batch * more))
        advice = [
            advise(
                f"larger batch, if memory and accuracy allow: {larger[0]} {larger[1]}", again(evidence, cell, larger)
            ),
            advise(
                f"same memory: accumulate {cell.spec.accumulation * more} micro-batches between reductions",
                again(evidence, cell, *accumulated),
                only_for=("replicated",),
            ),
        ]
    elif more is not None:
        advice = [
            advise(
                f"{more} times the batch per rank, if memory and accuracy allow: updates become fewer, scale the "
                "learning rate"
            ),
            advise(
                f"the same with {more} micro-batches accumulated between reductions (no_sync)", only_for=("replicated",)
            ),
        ]
    if (
        run.device != "cpu"
        and run.precision not in ("bf16", "fp16")
        and not any(cause == "model too small" for cause, _ in cost.causes)
    ):
        advice.append(_fewer_bytes(run))
    advice.append(advise("use fewer ranks: a job that does not scale is cheaper on the ranks that it fills"))
    if not cost.measured:
        advice.insert(
            0,
            advise("measure the communication first", None if cell is None else profiled(evidence, cell)),
        )
    return tuple(advice)


def _fewer_bytes(run: TrainingRun) -> Advice:
    """Advise how to send fewer bytes: hooks are DDP's; what is sharded sends its parameters too."""
    if shards(run.strategy):
        return advise("halve the bytes: gather and reduce in bf16 (mixed precision of the wrapper; AMP alone does not)")
    if not facts_of_run(run).replicated:
        return advise("halve the bytes: send activations in bf16; keep these groups inside a host")
    return advise("halve the bytes: a bf16 communication hook on DDP (AMP alone does not cut them)")


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
