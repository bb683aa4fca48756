"""The model uses little of the devices' peak, and where the rest goes.

What
----
MFU of the median step (HFU where only executed FLOP are known), median over ranks; of runs of other tools, the MFU that
their own log states, without reasons. Below {low} every point of document
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

from collections.abc import Iterator
from statistics import fmean, median
from typing import TYPE_CHECKING

from stepscope.core.errors import Unavailable
from stepscope.core.units import format_bytes_binary, format_duration, format_flops, format_number, format_percent
from stepscope.diagnose.commands import trace_command
from stepscope.diagnose.job_facts import facts_of
from stepscope.diagnose.rule import Finding, Limit, Rule, Statement, finding, skipped
from stepscope.diagnose.trace_facts import (
    RankShares,
    idle_part,
    kinds_ns,
    on_device,
    total_ns,
    unread,
    waiting_share,
    window_ns,
)
from stepscope.records.nouns import EXPOSED_COMM
from stepscope.records.parts import TITLES
from stepscope.records.trace_budget import Utilisation
from stepscope.records.trace_summary import RankPass, TraceSummary
from stepscope.results.evidence import Evidence, TraceEvidence, name_of
from stepscope.traces.kernel_names import MATRIX, MATRIX_TENSOR, MATRIX_UNKNOWN

if TYPE_CHECKING:
    from stepscope.records.training import TrainingRun

_LOW = Limit(0.3, unit="MFU", source="published: large models reach 30 to 50%; PaLM 46%, Megatron 52%")
_WORTH = Limit(0.02, unit="share of the window", source="stepscope's choice, 2026-11: less is left out of the list")

_GAPS = {
    "launch gaps": (("host_late", "launch_latency"), "use larger kernels, or CUDA graphs where none run"),
    "host waits for the device": (("sync",), "remove .item(), .cpu() and prints of tensors from the step"),
    "input": (("data",), "load batches in advance: the data-loading finding says how"),
    "gaps between queued kernels": (("kernel_gap", "dependency"), "fuse small kernels: norms, attention, updates"),
    "single long gaps": (("long_gap",), "find what stops the host there"),
    "unified memory": (("pages",), "prefetch its pages, or allocate on the device"),
    "idle for no recorded cause": (("unknown",), "record launches: profile CPU and CUDA activities together"),
}
"""Point of the checklist -> causes of idle time, and what helps."""

_SOURCES = {"given": "as given", "shapes": "from recorded shapes", "recorded": "as the profiler recorded them"}


def _low_mfu_of_job(job: TraceEvidence) -> Statement:
    """Look in one traced job for: the model uses little of the devices' peak."""
    ranks = on_device(job.summary)
    if not ranks:
        return unread(job.summary, "no device work: a CPU has no peak to compare with")
    rated = [(p, p.utilisation) for p in ranks if p.utilisation is not None and _used_share(p.utilisation) is not None]
    if not rated:
        why = next((p.utilisation.unavailable for p in ranks if p.utilisation and p.utilisation.unavailable), None)
        return skipped(
            f"MFU unknown: {why or 'the trace has no shapes or names no device with a known peak'}",
            trace_command(job, "--show utilisation --flop FLOP"),
        )
    share = median(_used_share(u) or 0.0 for _, u in rated)
    u = rated[0][1]
    name, flop = ("MFU", u.model_flop) if u.mfu is not None else ("HFU", u.hardware_flop)
    if share >= _LOW:
        return f"{name} {format_percent(share)} of the {u.dtype} peak, limit {format_percent(_LOW)}"
    points = sorted(_lost_points(job.summary, [p for p, _ in rated], u, share), key=lambda point: -point[0])
    shown = [point for point in points if point[0] >= _WORTH]
    assert flop is not None
    assert u.step_ns is not None
    return finding(
        f"{name} is {format_percent(share, digits=None if share >= 0.01 else 2)} of the {u.dtype} peak"
        + (f": most goes to {shown[0][1]}" if shown else ""),
        f"{format_flops(flop / (u.step_ns / 1e9) / u.devices)} reached of {format_flops(u.peak_flops_per_s or 0.0)} "
        f"({u.device_name}, {u.dtype}, dense) in steps of {format_duration(u.step_ns)}",
        [f"{_WORTH.of(lost)}: {part}" for lost, part, _ in shown],
        stake=min(1 - share / _LOW, shown[0][0] if shown else 0.0),
        confidence=f"measured; FLOP {_SOURCES.get(u.flop_source or '', 'as recorded')}, {u.formula}",
        advice=[
            (text, "--show utilisation,kernels,idle" if not number else None)
            for number, text in enumerate(dict.fromkeys(advice for *_, advice in shown[:3] if advice))
        ],
    )


def _judge_runs(evidence: Evidence) -> Statement:
    """Judge runs whose own source states an MFU: it says how much is used, not what the rest waits for."""
    stated = [(run.mfu, run) for run in evidence.runs if run.mfu and run.model_flop is None and run.status == "ok"]
    if not stated:
        return skipped("no run states its MFU")
    low = [(share, run) for share, run in stated if share < _LOW]
    least, of = min(stated, key=lambda item: item[0])
    return [_stated_low_finding(share, run) for share, run in low] or (
        f"{name_of(of)}: MFU {format_percent(least)}, as its source states it, limit {format_percent(_LOW)}"
    )


def _stated_low_finding(share: float, run: TrainingRun) -> Finding:
    """Return the finding of a low MFU that a run states."""
    rate, memory = run.rank_samples_per_s, run.peak_memory_bytes
    if rate is None and run.samples_per_s is not None and run.world_size:
        rate = run.samples_per_s.times(1 / run.world_size)
    return finding(
        f"MFU is {format_percent(share, digits=1 if share >= 0.01 else 2)}, far below the 35 to 50% that large models reach",
        "as the log states it: it does not say what the devices wait for",
        rate is not None and f"{format_number(rate.value)} {run.unit}/s on each device",
        memory is not None and f"at most {format_bytes_binary(memory)} of memory used on a device",
        stake=1 - share / _LOW,
        confidence="stated by the run's own log; its count of FLOP and its peak are unknown",
        advice=[
            (
                "record a few steps with torch.profiler on all ranks: the network, the host, or data take the time",
                "stepscope trace --help",
            ),
            "see whether a larger micro-batch or longer sequences fit in the memory: small products run slowly",
        ],
        of=run,
    )


def _used_share(u: Utilisation) -> float | None:
    return u.mfu if u.mfu is not None else u.hfu


def _lost_points(
    summary: TraceSummary, ranks: list[RankPass], u: Utilisation, used: float
) -> Iterator[tuple[float, str, str]]:
    """Say where the time goes (share of the step, part, what helps): parts of the window without a matrix product, and the
    products' distance from the peak. They add up to the whole time but for kernels that run at once on several streams.
    """
    parts = [p.budget.parts for p in ranks if p.budget is not None]
    comm = fmean(part.exposed_comm_ns / max(part.window_ns, 1) for part in parts)
    waiting = comm * (waiting_share(summary) or 0.0)
    copies = fmean(part.exposed_memory_ns / max(part.window_ns, 1) for part in parts)
    yield comm - waiting, EXPOSED_COMM, "overlap communication with computation"
    yield waiting, TITLES["waiting"], "find the late rank: the straggler finding names it"
    yield copies, TITLES["copies"], "copy from pinned memory without waiting (non_blocking=True)"
    for gap, (causes, advice) in _GAPS.items():
        yield idle_part(ranks, *causes).share, gap, advice
    mixed = [(p, p.mix) for p in ranks if p.mix is not None]
    if not mixed:
        return
    computing = [min(1.0, p.budget.parts.compute_ns / window_ns(p)) if p.budget else 0.0 for p, _ in mixed]
    matrix = [kinds_ns(mix, *MATRIX) / max(mix.total_ns, 1) for _, mix in mixed]
    products = fmean(share * part for share, part in zip(computing, matrix, strict=True))
    short = fmean(mix.short_ns / max(mix.total_ns, 1) for _, mix in mixed) * fmean(computing)
    tail = f" ({format_percent(short)} in kernels of at most 10 us)" if short >= _WORTH else ""
    yield (
        fmean(computing) - products,
        f"kernels other than matrix products, bound by memory{tail}",
        "fuse element-wise work, such as attention and norms",
    )
    first = RankShares((), ranks=(mixed[0][0],))
    total = max(total_ns(first.kinds(*MATRIX)), 1)
    tensor, unknown = (total_ns(first.kinds(kind)) / total for kind in (MATRIX_TENSOR, MATRIX_UNKNOWN))
    speed = used / products if products else 0.0
    units = f"{format_percent(tensor)} of their time on tensor cores" + (
        f", {format_percent(unknown)} in kernels of unknown kind" if unknown >= _WORTH else ""
    )
    yield (
        max(0.0, products - used),
        f"matrix products at {format_percent(min(speed, 1.0))} of the {u.dtype} peak ({units})",
        _products_advice(u, tensor + unknown, trains=facts_of(summary).trains is not False),
    )


_FASTER = {"bf16": "bf16 autocast", "tf32": "TF32", "fp16": "fp16 autocast with GradScaler"}
"""Types by which FP32 products become faster where the device has them."""


def _products_advice(u: Utilisation, tensor: float, *, trains: bool) -> str:
    """Advise on matrix products, of whose time so much may be on tensor cores."""
    if u.dtype == "fp32":
        from stepscope.machine.peaks.lookup import find

        peaks = find(u.device_name or "")
        rates = {} if isinstance(peaks, Unavailable) else peaks.peak_flops_per_s
        faster = [_FASTER[key] for key in _FASTER if rates.get(key, 0.0) > rates.get("fp32", 0.0)]
        if faster:
            text = f"use {' or '.join(faster[:2])}: FP32 products do not run on tensor cores"
            return text if trains else text.replace(" with GradScaler", "")
    if tensor < 0.5:
        return "make the products' dimensions multiples of 8 (16 for FP8), so that they run on tensor cores"
    return "make the products larger: larger batches, fewer and wider layers on each rank"


RULE = Rule(
    symptom="the model uses little of the devices' peak",
    any_of=("runs", "traces"),
    look=_judge_runs,
    look_at_job=_low_mfu_of_job,
    folded=True,
    claims=("step",),
    protocol=2,
    thresholds={"low": _LOW, "listed": _WORTH},
)
