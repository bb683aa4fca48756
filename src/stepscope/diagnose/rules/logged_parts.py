"""A training log names what its steps spend their time in, and one part takes a large share.

What
----
Compares the parts of a step that the log itself times (`data_time`, `Data`, `backward_allreduce`, `step`, ...), means over
the logged steps, with the step: waiting for data over {data}, communication over {communication}, the optimizer over
{optimizer}, what is outside of the framework's timers over {other}. Of a table of torch.profiler it says which operators
the device's time goes to, and names communication and copies over {device}.

Why
---
The framework measured it already; what takes the time is what to change.

Known problems
--------------
Most frameworks time on the host's clock, without waiting for the device: then computation on the device may count as
waiting for data in the next step. What no timer names is judged only where the log times all of the
training: else it may be communication, or waiting for other stages. A log of a few
lines says little of the whole training. A profiler's table does not say what is hidden behind computation; waiting
for other ranks is in its communication, and rows that were not printed count for nothing.

References
----------
OpenMMLab, detectron2, timm and open_clip: their timers read the clock before and after the loader (source read 2026-11);
DeepSpeed, wall_clock_breakdown (documentation read 2026-11); torch.autograd.profiler_util (source read 2026-11).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stepscope.core.units import format_duration, format_number, format_percent
from stepscope.core.words import counted
from stepscope.diagnose.bounds import LIMITS, PART_OF
from stepscope.diagnose.rule import Advices, Finding, Limit, Rule, Statement, advise, finding, skipped
from stepscope.records.nouns import Measured
from stepscope.records.parts import TITLES
from stepscope.records.training import TrainingRun
from stepscope.results.evidence import Evidence

OF_OTHER = Limit(0.30, unit="share of the step", source="a guess, 2026-11: logging and loading are mostly below it")
OF_DEVICE = Limit(
    0.25, unit="share of the device's time", source="as for communication in a step; what is hidden is in it"
)

_LIMITS = {PART_OF[kind]: limit for kind, limit in LIMITS["log"].items()} | {"other": OF_OTHER}
_NAMES = {PART_OF[kind]: kind.capitalize() for kind in LIMITS["log"]} | {"other": "Outside of the training code"}
_ADVICE: Mapping[str, tuple[Advices, ...]] = {
    "data": (
        advise("more loader workers, faster storage, less decoding a sample", key="loader workers"),
        ("see which it is", "stepscope profile -- COMMAND"),
    ),
    "communication": (
        "send less or overlap it: larger batches a rank, more accumulation, compression",
        ("see what the network gives", "stepscope comm --ops all_reduce"),
    ),
    "other": (("data loading, logging and validation are there: see which", "stepscope profile -- COMMAND"),),
    "optimizer": (
        advise("keep the optimizer's state on the device (no CPU offload), use a fused optimizer", only_for=("gpu",)),
        ("see what its step does", "stepscope profile -- COMMAND"),
    ),
}


def check(evidence: Evidence) -> Statement:
    """Look for: a training log's own times of the parts of a step."""
    logged = [run for run in evidence.runs if run.parts_ns or run.device_shares]
    if logged:
        return [stated for run in logged for look in (_run_findings, _of_device) for stated in look(run)]
    alone = evidence.runs[0] if len(evidence.runs) == 1 and not evidence.cells else None
    rate = None if alone is None else alone.samples_per_s or alone.rank_samples_per_s
    if alone is None or (alone.step_ns is None and (rate is None or alone.epochs)):
        return skipped("no log names the parts of its steps")
    return _whole_step_finding(alone, alone.step_ns, rate)


def _whole_step_finding(run: TrainingRun, step: Measured | None, rate: Measured | None) -> Finding:
    """Return what the log of one run says of its steps, where it names no parts."""
    items = rate is not None and f"{format_number(rate.value)} {run.unit}/s" + (
        " a rank" if run.samples_per_s is None else ""
    )
    counts = [figure.n or 0 for figure in (step, rate) if figure is not None]
    return finding(
        f"the log states {items}" if step is None else f"a logged step takes {format_duration(step.value)}",
        step is not None and items,
        run.mfu is not None and f"MFU {format_percent(run.mfu)}, as the log states it",
        severity="info",
        of=run,
        confidence=f"median of {counted(counts[0], 'logged step')}" if counts[0] else "as the log states it",
    )


def _run_findings(run: TrainingRun) -> Iterator[Finding]:
    """Yield a finding for each part beyond its limit; else what the parts are."""
    if not run.parts_ns:
        return
    step = sum(run.parts_ns.values())
    shares = {part: ns / step for part, ns in run.parts_ns.items()}
    large = [part for part, limit in _LIMITS.items() if shares.get(part, 0.0) >= limit]
    timed = "computation" in run.parts_ns and run.settings.get("pipeline_parallel", 1) == 1
    if "other" in large and not timed:
        large.remove("other")  # what no timer names may be communication, or waiting for other stages
    steps = 0 if run.step_ns is None else run.step_ns.n or 0
    of_steps = counted(steps, "logged step") if steps else "the logged steps"
    confidence = f"measured by the log, on the host's clock; mean of {of_steps}"
    lines = [
        f"{_part_title(part)}: {format_duration(ns)}, {format_percent(shares[part])}"
        for part, ns in run.parts_ns.items()
    ]
    for part in large:
        taken = run.parts_ns[part]
        yield finding(
            f"{_NAMES[part]}: {_part_title(part)} takes {format_percent(shares[part])} of the step, "
            f"{format_duration(taken)} of {format_duration(step)}",
            f"without it a step takes {format_duration(step - taken)}",
            lines,
            stake=shares[part],
            of=run,
            confidence=confidence,
            advice=_ADVICE[part],
        )
    if not large:
        yield finding(
            f"a logged step takes {format_duration(step)}", lines, severity="info", of=run, confidence=confidence
        )


_ON_DEVICE: Mapping[str, Advices] = {
    "communication": (
        "a trace says how much of it computation hides, and how much is waiting for other ranks",
        "stepscope trace trace.json  # of prof.export_chrome_trace('trace.json')",
    ),
    "copies": advise(
        "copy less between host and device, from pinned memory and with non_blocking=True", only_for=("gpu",)
    ),
}


def _of_device(run: TrainingRun) -> Iterator[Finding]:
    """Yield what the device's time goes to, as a profiler's table says."""
    if not run.device_shares:
        return
    of = "the device's" if run.device != "cpu" else "the CPU's"
    lines = [f"{name}: {format_percent(share)}" for name, share in run.device_shares.items() if name not in _ON_DEVICE]
    large = [name for name in _ON_DEVICE if run.device_shares.get(name, 0.0) >= OF_DEVICE]
    for name in large:
        yield finding(
            f"{format_percent(run.device_shares[name])} of {of} own time is {name}, hidden or not",
            lines,
            of=run,
            confidence="measured by torch.profiler; whether steps wait for it, its table does not say",
            advice=[_ON_DEVICE[name]],
        )
    if not large:
        largest = max(run.device_shares.keys() - _ON_DEVICE.keys(), key=run.device_shares.__getitem__)
        yield finding(
            f"{largest} is the largest operator: {format_percent(run.device_shares[largest])} of {of} own time",
            lines,
            severity="info",
            of=run,
            confidence="measured by torch.profiler",
        )


def _part_title(part: str) -> str:
    return "communication (all-reduce)" if part == "communication" else TITLES[part]


RULE = Rule(
    symptom="a training log's own times of the parts of a step",
    needs=("runs",),
    look=check,
    protocol=2,
    thresholds={**_LIMITS, "device": OF_DEVICE},
)
