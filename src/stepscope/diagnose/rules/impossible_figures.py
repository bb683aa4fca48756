"""Figures that are impossible, or so unlikely that the measurement must be checked first.

What
----
Impossible: MFU above 1; exposed communication longer than the step; a throughput that contradicts its own step time and
global batch by half or more; accuracies outside 0 to 1; times of 0 or less. Suspicious: an efficiency above 1.05
(super-linear speed-up), unless the speed-up's interval reaches linear. Each finding names the usual error.

Why
---
A wrong figure that looks good is believed, and every other figure of the report uses the same clock.

Known problems
--------------
Super-linear speed-ups are real if shards fit a cache, if sharded optimizer state (ZeRO, FSDP) leaves room for a larger
batch, or if one rank swaps or recomputes: the finding is a warning and says what to check. In-network reduction may
exceed the link's peak, so collectives are not judged here.

References
----------
docs/reference/metrics.md, Headline figures. A published text on profiling holds two such figures (its
MFU table, 186%; samples/s that are steps/s).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from stepscope.core.units import format_duration, format_number, format_percent
from stepscope.core.words import counted, grouped
from stepscope.diagnose.commands import remeasured
from stepscope.diagnose.rule import Finding, Limit, Rule, Statement, finding
from stepscope.diagnose.trace_facts import unread
from stepscope.records.nouns import EXPOSED_COMM, MFU_CONVENTION
from stepscope.results.evidence import Evidence
from stepscope.stats.compare import SUPERLINEAR

if TYPE_CHECKING:
    from stepscope.records.training import TrainingRun
    from stepscope.results.pairs import Pair

MAX_EFFICIENCY = Limit(
    SUPERLINEAR,
    unit="efficiency",
    source="caches alone give a few per cent; a larger gain has another cause, most often a slow baseline",
)
MAX_MFU = Limit(1.0, unit="MFU", source="MFU cannot exceed 1 by definition")
MAX_CONTRADICTION = Limit(
    1.5,
    unit="stated throughput / (global batch / step), or its inverse",
    source="a smaller last batch and warm-up cause a few per cent; counting one of 2 ranks gives 2",
)


def check(evidence: Evidence) -> Statement:
    """Look for: impossible figures (MFU above 1, throughput that contradicts its step), and super-linear speed-ups."""
    finished = [run for run in evidence.runs if run.status == "ok"]
    compared: tuple[Pair, ...] = ()
    if evidence.scaling:
        from stepscope.results.pairs import pairs

        compared = pairs(evidence)
    findings = [
        *_too_fast(evidence, compared),
        *_utilisation_findings(evidence),
        *(finding for run in finished for finding in _run_findings(run)),
    ]
    if findings:
        return findings
    if not finished and evidence.traces and not any(p.budget for job in evidence.traces for p in job.summary.ranks):
        return unread(evidence.traces[0].summary, "")
    best = max(compared, key=lambda pair: pair.row.efficiency, default=None)
    looked = counted(len(finished), "run") if finished else "utilisation in traces"
    if best is None:
        return looked
    limit = format_percent(MAX_EFFICIENCY)
    looked += f", highest efficiency {format_percent(best.row.efficiency)}, limit {limit}"
    if best.row.efficiency > MAX_EFFICIENCY:
        looked += f"; not established: {best.speedup_text} includes {best.relative:g}x"
    return looked


def _too_fast(evidence: Evidence, compared: tuple[Pair, ...]) -> Iterator[Finding]:
    """Yield one finding a baseline, the common side of all its ratios: of speed-ups above linear by more than caches give,
    whose interval, if there is one, is above linear too."""
    too_fast = [
        pair
        for pair in sorted(compared, key=lambda pair: -pair.row.efficiency)
        if not pair.mixed
        and pair.row.efficiency > MAX_EFFICIENCY
        and (pair.row.low is None or pair.row.low > pair.relative)
    ]
    for worst, *others in grouped(too_fast, lambda pair: pair.base.run_id).values():
        from stepscope.results.scaling import superlinear_reasons  # traces have no pairs

        row, run, base = worst.row, worst.run, worst.base
        also = ", ".join(f"{pair.run.label}: {pair.row.speedup:.2f}x" for pair in others[:4])
        yield finding(
            f"{row.speedup:.2f}x on {worst.ranks} is super-linear: {format_percent(row.efficiency)} efficiency",
            f"{worst.speedup_text} against {base.label}; {worst.relative:g}x is linear",
            also and f"also {also}",
            _errors_of(worst),
            advice=[
                (
                    f"measure {base.label} again, alone on the machine, with as many steps as {run.label}",
                    remeasured(evidence, base),
                )
            ],
            confidence="suspicious, not impossible: caches, sharded state and larger batches can exceed linear; a slow "
            "baseline is more frequent",
            of=(run, base),
            priority="wrong",
            case="super-linear",
            wrong_runs=() if superlinear_reasons(run, base) else (base.run_id,),
        )


def _errors_of(pair: Pair) -> list[str]:
    """Say what the two runs show of the usual causes, or all of these; then the baseline's own note."""
    from stepscope.results.scaling import superlinear_reasons
    from stepscope.stats.warmup import MIN_STEPS

    run, base = pair.run, pair.base
    errors = []
    few = base.step_ns.n if base.step_ns is not None else None
    if few is not None and few < MIN_STEPS:
        errors.append(f"the baseline has only {counted(few, 'step')}")
    errors += [f"{reason}: can explain the gain" for reason in superlinear_reasons(run, base)]
    if base.world_size == 1 and base.strategy not in (None, "single"):
        errors.append(
            f"the baseline runs {base.strategy} on one rank, which costs time and gains nothing: use a plain process"
        )
    if run.device == "cpu" and base.device == "cpu":
        errors.append(
            "each CPU rank adds cores: a baseline limited to one rank's threads makes the speed-up super-linear"
        )
    usual = (
        "usual errors: other load or warm-up slowed the baseline; timing did not wait for the device; a throughput of "
        "all ranks was multiplied by the ranks"
    )
    notes = [note for note in base.notes if any(word in note for word in ("time", "epoch", "step", "warm"))]
    return [*(errors or [usual]), *(f"the baseline's own note: {note}" for note in notes[:1])]


def _utilisation_findings(evidence: Evidence) -> Iterator[Finding]:
    """Yield findings on MFU of traces, and of runs whose source states one."""
    for trace in evidence.traces:
        used = [rank.utilisation for rank in trace.summary.ranks if rank.utilisation is not None]
        worst = max(used, key=lambda utilisation: utilisation.mfu or 0.0, default=None)
        if worst is not None and worst.mfu is not None and worst.mfu > MAX_MFU:
            yield _mfu_finding(f"{trace.name}, rank {worst.rank}", worst.mfu, worst.formula)
    for run in evidence.runs:
        from stepscope.results.epochs import setting

        value = run.mfu if run.mfu is not None else setting(run.settings, "mfu")
        if isinstance(value, (int, float)) and value > MAX_MFU and run.status == "ok":
            share = value / 100 if value > 2 else value  # a source that writes per cent
            if share > MAX_MFU:
                how = "as the source states it" if run.model_flop is None else MFU_CONVENTION
                yield _mfu_finding(run, share, how)


def _mfu_finding(of: str | TrainingRun, mfu: float, how: str) -> Finding:
    """Return the finding of an MFU above 1. how: what it rests on."""
    return _impossible_finding(
        "mfu",
        of,
        f"MFU of {format_percent(mfu)} is impossible",
        how,
        "usual errors: FLOP of the global batch against one device's peak; the peak of another type, or the "
        "sparse one; recomputed FLOP counted as the model's; a step timed without waiting for the device",
        fix="give FLOP per step, number of devices and dense peak of the type in use: stepscope hardware lists peaks",
        sure="no device exceeds its peak (of sparse products, the sparse peak); which input is wrong is unknown",
    )


def _run_findings(run: TrainingRun) -> Iterator[Finding]:
    """Yield the figures of a run that contradict each other."""
    step, exposed, rate = run.step_ns, run.exposed_comm_ns, run.samples_per_s
    if step is not None and exposed is not None and exposed.value > step.value * MAX_EFFICIENCY > 0:
        yield _impossible_finding(
            "exposed",
            run,
            f"{format_duration(exposed.value)} of {EXPOSED_COMM} in a step of {format_duration(step.value)}",
            "usual error: communication summed over ranks or micro-steps, step time of one rank",
            fix="measure both per rank and optimizer step, on one clock",
            sure=f"a step contains its {EXPOSED_COMM}",
        )
    if rate and step and run.global_batch and run.unit == "samples" and step.value > 0 and rate.value > 0:
        derived = run.global_batch / (step.value / 1e9)
        ratio = rate.value / derived
        if not 1 / MAX_CONTRADICTION < ratio < MAX_CONTRADICTION:
            yield _impossible_finding(
                "contradiction",
                run,
                f"{format_number(rate.value)} samples/s contradicts its own step: {run.global_batch} samples in"
                f" {format_duration(step.value)} is {format_number(derived)}",
                f"{ratio:.3g}x apart: {_likely_reason(run, ratio)}",
                fix="compute throughput = samples of all ranks in a step / time of the slowest rank's step",
                sure="the two figures do not describe the same steps; the reason is likely",
            )
    wrong = [e.number for e in run.epochs if e.validation_accuracy is not None and not 0 <= e.validation_accuracy <= 1]
    if wrong:
        yield _impossible_finding(
            "accuracy",
            run,
            f"validation accuracy outside 0 to 1 in epoch {wrong[0]}",
            f"{counted(len(wrong), 'epoch')} of {len(run.epochs)}",
            "usual error: per cent written as a fraction",
            fix="divide by 100, or name the column accuracy in per cent",
            sure="an accuracy is between 0 and 1",
        )
    empty = [e.number for e in run.epochs if e.duration_ns is not None and e.duration_ns <= 0]
    if empty or (step is not None and step.value <= 0):
        yield _impossible_finding(
            "no time",
            run,
            f"{counted(len(empty), 'epoch') if empty else 'a step'} took no time",
            "usual errors: a clock that was set back, a field that was never filled",
            fix="use a monotonic clock (time.perf_counter); leave unknown times out",
            sure="work takes more than zero time",
        )


def _likely_reason(run: TrainingRun, ratio: float) -> str:
    ranks, batch, accumulation = run.world_size or 1, run.global_batch or 1, run.accumulation or 1
    meanings = (
        (1 / batch, "these are steps/s, not samples/s"),
        (1 / ranks, "one rank's samples, not those of all ranks"),
        (ranks, "multiplied by the ranks twice"),
        (1 / accumulation, "one micro-step's samples, not the whole step's"),
        (accumulation, "the step's time is one micro-step's"),
    )
    for factor, meaning in meanings:
        if factor != 1 and abs(math.log(ratio / factor)) < math.log(1.1):
            return meaning
    return "they do not cover the same steps"


def _impossible_finding(case: str, of: str | TrainingRun, title: str, *evidence: str, fix: str, sure: str) -> Finding:
    """Report one figure that cannot be. case: which. of: whose it is: a run is wrong with it."""
    wrong = () if isinstance(of, str) else (of.run_id,)
    return finding(
        title,
        *evidence,
        confidence=f"certain: {sure}",
        advice=[fix],
        of=of,
        priority="wrong",
        case=case,
        wrong_runs=wrong,
    )


RULE = Rule(
    symptom="impossible figures (MFU above 1, throughput that contradicts its step), and super-linear speed-ups",
    any_of=("runs", "traces"),
    look=check,
    folded=True,
    protocol=1,
    thresholds={"efficiency": MAX_EFFICIENCY, "mfu": MAX_MFU, "contradiction": MAX_CONTRADICTION},
)
