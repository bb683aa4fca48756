"""The model uses little of the devices' peak, and where the rest goes.

What
----
MFU of the median step (HFU where only executed FLOP are known), median over ranks. Below {low} every point of document
the usual checklist is answered from the trace, in order of the time it takes: exposed communication, waiting for launches,
Python, data, copies, work other than matrix products, small kernels, and matrix products that run below the peak
(precision, tensor cores, size).

Why
---
MFU = model FLOP / (step time x devices x dense peak). The parts of the step in which no matrix product runs lower it in
proportion; what is left is how fast the products themselves are.

Known problems
--------------
A model bound by memory (inference, small batches, embeddings) cannot reach it: then the largest point is work other
than matrix products. The rule is quiet without FLOP or peak: CPUs have no peak, compiled code records no shapes.
The other rules weigh each point for itself; this one only puts them in order. Its stake is the largest point, at most
what that needs; where another rule has as much at stake, that rule names the cause, and this one is quiet.

References
----------
docs/reference/metrics.md, Headline figures; published advice (30 to 50% is typical of large models);
Chowdhery et al., PaLM, 2022 (46.2% MFU; the definition); Narayanan et al., SC 2021 (52% on 3,072 A100).
"""

from __future__ import annotations

from statistics import fmean, median
from typing import NamedTuple

from stepscope.core.errors import Unavailable
from stepscope.core.units import format_duration, format_flops, format_percent
from stepscope.diagnose.rule import Limit, Rule, Statement, inspect
from stepscope.diagnose.trace_facts import (
    idle_share,
    kinds_ns,
    on_device,
    severity_of,
    trace_command,
    unread,
    waiting_share,
    window_ns,
)
from stepscope.records.finding import Finding, Skipped
from stepscope.records.nouns import EXPOSED_COMM
from stepscope.records.parts import TITLES
from stepscope.records.trace_budget import Utilisation
from stepscope.records.trace_summary import RankPass, TraceSummary
from stepscope.results.evidence import TraceEvidence
from stepscope.traces.kernel_names import MATRIX, MATRIX_TENSOR, MATRIX_UNKNOWN

_LOW = Limit(
    value=0.3,
    unit="MFU",
    source="published: large models reach 30 to 50%; PaLM 46%, Megatron 52%",
)
_WORTH = Limit(
    value=0.02, unit="share of the window", source="stepscope's choice, 2026-11: less is left out of the list"
)

_GAPS = {
    "launch gaps": (("host_late", "launch_latency"), "use larger kernels or CUDA graphs"),
    "host waits for the device": (("sync",), "remove .item(), .cpu() and prints of tensors from the step"),
    "input": (("data",), "load batches in advance: the data-loading finding says how"),
    "gaps between queued kernels": (
        ("kernel_gap", "dependency"),
        "fuse small kernels: fused optimizers, norms and attention",
    ),
    "single long gaps": (("long_gap",), "find what stops the host there"),
    "idle for no recorded cause": (("unknown",), "record launches: profile CPU and CUDA activities together"),
}
"""Point of the checklist -> causes of idle time, and what helps."""


class _Point(NamedTuple):
    """Where a part of the time goes. share: of the step, which this part costs."""

    share: float
    part: str
    advice: str


def _judge_job(job: TraceEvidence) -> Statement:
    ranks = on_device(job.summary)
    if not ranks:
        return unread(job.summary, "no device work: a CPU has no peak to compare with")
    rated = [(p, p.utilisation) for p in ranks if p.utilisation is not None and _used(p.utilisation) is not None]
    if not rated:
        why = next((p.utilisation.unavailable for p in ranks if p.utilisation and p.utilisation.unavailable), None)
        return Skipped(
            reason=f"MFU unknown: {why or 'the trace has no shapes or names no device with a known peak'}",
            command=trace_command(job, "--show utilisation --flop FLOP"),
        )
    share = median(_used(u) or 0.0 for _, u in rated)
    u = rated[0][1]
    name = "MFU" if u.mfu is not None else "HFU"
    if share >= _LOW.value:
        return f"{name} {format_percent(share)} of the {u.dtype} peak, limit {format_percent(_LOW.value)}"
    if share > 1:
        return Skipped(reason="a utilisation above 1 is an error: see impossible-figures")
    points = sorted(_points(job.summary, [p for p, _ in rated], u, share), key=lambda point: -point.share)
    shown = [point for point in points if point.share >= _WORTH.value]
    stake = min(1 - share / _LOW.value, shown[0].share if shown else 0.0)
    return Finding(
        severity=severity_of(stake),
        title=f"{name} is {format_percent(share, digits=None if share >= 0.01 else 2)} of the {u.dtype} peak"
        + (f": most goes to {shown[0].part}" if shown else ""),
        evidence=(_figures(u, name), *(f"{_WORTH.of(point.share)}: {point.part}" for point in shown)),
        stake_fraction=stake,
        confidence=f"measured; FLOP {_SOURCES.get(u.flop_source or '', 'as recorded')}, {u.formula}",
        advice=tuple(
            inspect(text, trace_command(job, "--show utilisation,kernels,idle") if not number else None)
            for number, text in enumerate(dict.fromkeys(point.advice for point in shown[:3] if point.advice))
        ),
    )


_SOURCES = {"given": "as given", "shapes": "from recorded shapes", "recorded": "as the profiler recorded them"}


def _used(u: Utilisation) -> float | None:
    return u.mfu if u.mfu is not None else u.hfu


def _figures(u: Utilisation, name: str) -> str:
    flop = u.model_flop if name == "MFU" else u.hardware_flop
    assert flop is not None
    assert u.step_ns is not None
    reached = flop / (u.step_ns / 1e9) / u.devices
    return (
        f"{format_flops(reached)} reached of {format_flops(u.peak_flops_per_s or 0.0)} ({u.device_name}, {u.dtype}, dense) "
        f"in steps of {format_duration(u.step_ns)}"
    )


def _points(summary: TraceSummary, ranks: list[RankPass], u: Utilisation, used: float) -> list[_Point]:
    """Say where the time goes: parts of the window without a matrix product, and the products' distance from the peak.

    They add up to the whole time but for kernels that run at once on several streams.
    """
    parts = [p.budget.parts for p in ranks if p.budget is not None]
    comm = fmean(part.exposed_comm_ns / max(part.window_ns, 1) for part in parts)
    waiting = comm * (waiting_share(summary) or 0.0)
    copies = fmean(part.exposed_memory_ns / max(part.window_ns, 1) for part in parts)
    points = [
        _Point(comm - waiting, EXPOSED_COMM, "overlap communication with computation"),
        _Point(waiting, TITLES["waiting"], "find the late rank: the straggler finding names it"),
        _Point(copies, TITLES["copies"], "copy from pinned memory without waiting (non_blocking=True)"),
    ]
    for gap, (causes, advice) in _GAPS.items():
        points.append(_Point(fmean(idle_share(p, *causes) for p in ranks), gap, advice))
    mixed = [(p, p.mix) for p in ranks if p.mix is not None]
    if not mixed:
        return points
    computing = [min(1.0, p.budget.parts.compute_ns / window_ns(p)) if p.budget else 0.0 for p, _ in mixed]
    matrix = [kinds_ns(mix, *MATRIX) / max(mix.total_ns, 1) for _, mix in mixed]
    products = fmean(share * part for share, part in zip(computing, matrix, strict=True))
    other = fmean(computing) - products
    short = fmean(mix.short_ns / max(mix.total_ns, 1) for _, mix in mixed) * fmean(computing)
    tail = f" ({format_percent(short)} in kernels of at most 10 us)" if short >= _WORTH.value else ""
    points.append(
        _Point(
            other,
            f"kernels other than matrix products, bound by memory{tail}",
            "fuse element-wise work, such as attention and norms",
        )
    )
    slow, first = max(0.0, products - used), mixed[0][0]
    points.append(_Point(slow, _products_text(first, u, products, used), _products_advice(first, u)))
    return points


_FASTER = {"bf16": "bf16 autocast", "tf32": "TF32", "fp16": "fp16 autocast with GradScaler"}
"""Types by which FP32 products become faster where the device has them."""


def _tensor_share(rank: RankPass) -> tuple[float, float]:
    """Return the shares of the products' time on tensor cores, and in kernels of unknown kind."""
    assert rank.mix is not None
    total = max(kinds_ns(rank.mix, *MATRIX), 1)
    return kinds_ns(rank.mix, MATRIX_TENSOR) / total, kinds_ns(rank.mix, MATRIX_UNKNOWN) / total


def _products_text(rank: RankPass, u: Utilisation, products: float, used: float) -> str:
    tensor, unknown = _tensor_share(rank)
    speed = used / products if products else 0.0
    units = f"{format_percent(tensor)} of their time on tensor cores" + (
        f", {format_percent(unknown)} in kernels of unknown kind" if unknown >= _WORTH.value else ""
    )
    return f"matrix products at {format_percent(min(speed, 1.0))} of the {u.dtype} peak ({units})"


def _products_advice(rank: RankPass, u: Utilisation) -> str:
    tensor, unknown = _tensor_share(rank)
    if u.dtype == "fp32":
        from stepscope.machine.peaks.lookup import find

        peaks = find(u.device_name or "")
        rates = {} if isinstance(peaks, Unavailable) else peaks.peak_flops_per_s
        faster = [_FASTER[key] for key in _FASTER if rates.get(key, 0.0) > rates.get("fp32", 0.0)]
        if faster:
            return f"use {' or '.join(faster[:2])}: FP32 products do not run on tensor cores"
    if tensor + unknown < 0.5:
        return "make the products' dimensions multiples of 8 (16 for FP8), so that they run on tensor cores"
    return "make the products larger: a larger micro-batch, fewer and wider layers on each rank"


RULE = Rule(
    symptom="the model uses little of the devices' peak",
    look_at_job=_judge_job,
    claims=("step",),
    protocol=2,
    thresholds={"low": _LOW, "listed": _WORTH},
)
