"""MFU and HFU of a rank's steps: FLOP given or found in the trace, over time and the device's peak."""

from __future__ import annotations

import re
from statistics import median

import numpy as np

from stepscope.core.dataclass import record
from stepscope.core.errors import Unavailable
from stepscope.core.units import format_percent
from stepscope.machine.peaks.lookup import find
from stepscope.records.trace_budget import StepUtilisation, Utilisation
from stepscope.stats import spans
from stepscope.traces.events import NONE, Category, Events, RankView, Shapes
from stepscope.traces.kernel_names import MATRIX, kernel_dtype, kernel_kind
from stepscope.traces.marks import marks_of
from stepscope.traces.operators import MATRIX_PRODUCTS, flop_by_event, links_of, uncounted_products
from stepscope.traces.passes import autograd_nodes
from stepscope.traces.quality import rank_quality
from stepscope.traces.steps import step_budgets

FORMULA = "FLOP per step / (step time x devices x dense peak)"

MIN_COVERAGE = 0.9
"""Least share of the matrix kernels' time whose FLOP are known: below, HFU would be more than a tenth too low, which is as
much as one run differs from the next on shared machines."""

_INPUT_DTYPES = {"c10::BFloat16": "bf16", "c10::Half": "fp16", "float": "fp32"}
_NARROW = {"c10::Float8": "fp8", "c10::Float4": "fp4"}
_QUOTED = re.compile(r'"([^"]*)"')


def utilisation(view: RankView) -> Utilisation:
    """MFU and HFU over the rank's steps (their parts' window is the step time).

    The FLOP that the user states are per step and rank. Without them the FLOP that the trace records
    (or its matrix products from their shapes) are hardware FLOP of this rank alone, as executed, and the model's are 3
    times those outside of the backward pass, where there is one, and at most all: what is recomputed in it does not count.
    Both are unknown where they cover too little of the time of the matrix kernels (``MIN_COVERAGE``: compiled code, CUDA
    graphs).
    """
    events, meta = view.events, view.meta
    model_flop, hardware_flop = view.wanted.model_flop, view.wanted.hardware_flop
    name = meta.device_names[0] if meta.device_names else None
    reasons: list[str] = []
    source: str | None = None
    incomplete: tuple[str, ...] = ()
    work = matrix_work(view)
    view.made.pop(links_of, None)  # as large as some columns, and no other asks for it
    coverage = None
    cut = any(note.kind == "truncated" for note in view.trace.notes)
    if model_flop is not None or hardware_flop is not None:
        source = "given"
    else:
        hardware_flop, model_flop, source, incomplete, why = _executed_flop(view, cut=cut)
        if why is None and work.coverage is not None:
            coverage = work.coverage
            if coverage < MIN_COVERAGE:
                hardware_flop = model_flop = None
                why = (
                    f"FLOP unknown: recorded for {format_percent(coverage)} of the time of matrix kernels, "
                    f"{format_percent(MIN_COVERAGE, digits=0)} is needed (compiled code, CUDA graphs and launches "
                    "outside the trace record none); give the model's"
                )
        if why:
            reasons.append(why)
    chosen, dtype_source = matrix_dtype(events, work)
    if chosen is None:
        reasons.append(
            f"the dtype is unknown: {format_percent(work.unknown_share)} of the time of matrix kernels is in kernels "
            "without a dtype in their name"
            if work.unknown_share
            else "the dtype of the matrix products is unknown"
        )
    peak, peak_source = None, None
    accelerator = find(name) if name else Unavailable(_no_name(events))
    if isinstance(accelerator, Unavailable):
        reasons.append(f"peak unknown: {accelerator.reason}")
    elif chosen is not None:
        rate = accelerator.peak(chosen)
        if isinstance(rate, Unavailable):
            reasons.append(f"peak unknown: {rate.reason}")
        else:
            peak, peak_source = rate, accelerator.source
    lacking = next((fact for fact in rank_quality(view) if not {"flop", "steps"}.isdisjoint(fact.takes)), None)
    # A step that launched no device work takes no time on the device.
    steps = [s for s in step_budgets(view) if s.parts.window_ns > 0 and lacking is None]
    if lacking is not None:
        reasons.append(lacking.text)
    elif not steps:
        reasons.append(
            "no whole step: the file is truncated"
            if cut
            else "no steps are marked: no ProfilerStep, no range and no Optimizer.step that repeats"
        )

    def used(flop: float | None, ns: float) -> float | None:
        return None if flop is None or peak is None or ns <= 0 else flop / (ns / 1e9 * peak)

    typical = float(median(s.usual_ns for s in steps)) if steps else None
    mfu = used(model_flop, typical) if typical is not None else None
    hfu = used(hardware_flop, typical) if typical is not None else None
    return Utilisation(
        rank=view.rank,
        device_name=name,
        dtype=chosen,
        dtype_source=dtype_source,
        peak_flops_per_s=peak,
        peak_source=peak_source,
        devices=1,
        model_flop=model_flop,
        hardware_flop=hardware_flop,
        flop_source=source if model_flop is not None or hardware_flop is not None else None,
        flop_incomplete=incomplete,
        flop_coverage=coverage,
        step_ns=typical,
        mfu=mfu,
        hfu=hfu,
        steps=tuple(
            StepUtilisation(
                step=s.step,
                step_ns=s.parts.window_ns,
                mfu=used(model_flop, s.parts.window_ns),
                hfu=used(hardware_flop, s.parts.window_ns),
            )
            for s in steps
        ),
        formula=FORMULA,
        unavailable="; ".join(reasons) or None,
        error=_why_impossible(mfu, hfu),
    )


def _no_name(events: Events) -> str:
    if events.is_device.any():
        return "the trace names no device"
    return "no device in this trace, and the peak of a CPU is unknown"


def _why_impossible(mfu: float | None, hfu: float | None) -> str | None:
    """Say why MFU or HFU cannot be; None: both can."""
    high = [f"{label} {value:.2f}" for label, value in (("MFU", mfu), ("HFU", hfu)) if value is not None and value > 1]
    if not high and mfu is not None and hfu is not None and hfu < mfu:
        return f"HFU {hfu:.2f} is below MFU {mfu:.2f}: what ran holds the model's FLOP; one of the two counts is wrong"
    if not high:
        return None
    return (
        f"{' and '.join(high)}: no device exceeds its peak; the FLOP count (per step, of all devices?), the "
        "dtype or the number of devices is wrong"
    )


def _executed_flop(
    view: RankView, *, cut: bool
) -> tuple[float | None, float | None, str | None, tuple[str, ...], str | None]:
    """Return FLOP per step as executed and as the model asks, where they are from, what is not counted, or why they are not
    known. cut: the file stops within its last step, which counts for nothing."""
    events, marks = view.events, marks_of(view)
    chosen = events.where(Category.CPU_OP)
    flop, source, why = flop_by_event(events, chosen)
    if why is not None:
        return None, None, None, (), f"FLOP unknown: {why}; give the model's"
    missing = uncounted_products(events)
    if missing:
        return (
            None,
            None,
            None,
            missing,
            (
                f"FLOP unknown: {', '.join(missing[:3])} are in the trace and their shapes do not determine their "
                "FLOP; give the model's"
            ),
        )
    steps = len(marks) - cut
    if steps <= 0:
        return None, None, None, (), None
    starts = events.ts_ns[chosen]
    counts = (starts >= marks.starts[0]) & (starts < marks.ends[steps - 1]) & (flop > 0)
    backward = events.spans(autograd_nodes(events))
    model = None
    if len(backward):
        within = spans.holds(backward, starts)
        # Where the first layers' input needs no gradient, backward has less than twice the forward pass's products.
        model = min(3.0 * float(flop[counts & ~within].sum()), float(flop[counts].sum())) / steps
    return float(flop[counts].sum()) / steps, model, source, (), None


@record
class MatrixWork:
    """The matrix kernels of a rank: their time, by the dtype they multiply in, and the part whose FLOP are known."""

    total_ns: int
    covered_ns: int
    by_dtype: dict[str | None, int]  # None: neither the kernel's name nor its operator's inputs tell

    @property
    def coverage(self) -> float | None:
        return self.covered_ns / self.total_ns if self.total_ns else None

    @property
    def unknown_share(self) -> float:
        return self.by_dtype.get(None, 0) / self.total_ns if self.total_ns else 0.0


def matrix_work(view: RankView) -> MatrixWork:
    """Kernels that multiply matrices, by name; FLOP count as known where an operator around the launch has some."""
    events = view.events
    codes = [c for c, name in enumerate(events.names) if kernel_kind(name) in MATRIX]
    chosen = np.flatnonzero((events.category == Category.KERNEL) & np.isin(events.name, codes))
    spent = events.dur_ns[chosen]
    if not len(chosen):
        return MatrixWork(total_ns=0, covered_ns=0, by_dtype={})
    tree, owner = links_of(view).nest, links_of(view).owner_of(chosen)
    covered = np.zeros(len(chosen), dtype=bool)
    around = owner
    while (open_ := around != NONE).any():
        operators, place = np.unique(around[open_], return_inverse=True)
        covered[open_] |= (flop_by_event(events, tree.index[operators])[0] > 0)[place]
        around = np.where(open_ & ~covered, tree.parent[np.maximum(around, 0)], NONE)
    shape = np.where(owner != NONE, events.shape[tree.index[np.maximum(owner, 0)]] if len(tree) else NONE, NONE)
    by_dtype: dict[str | None, int] = {}
    kinds, place = np.unique(np.stack([events.name[chosen], shape]), axis=1, return_inverse=True)
    for (name, inputs), ns in zip(kinds.T.tolist(), np.bincount(place.ravel(), weights=spent).tolist(), strict=True):
        dtype = kernel_dtype(events.names[name]) or (_low_precision(events.shapes[inputs]) if inputs != NONE else None)
        by_dtype[dtype] = by_dtype.get(dtype, 0) + int(ns)
    return MatrixWork(total_ns=int(spent.sum()), covered_ns=int(spent[covered].sum()), by_dtype=by_dtype)


def matrix_dtype(events: Events, work: MatrixWork) -> tuple[str | None, str | None]:
    """The dtype that most matrix work is done in and where that is from: kernels by time, else inputs by calls.

    None where neither tells, or where most of the kernels' time is of a dtype that nothing tells: float32 inputs may be
    multiplied in TF32 on GPUs that have it, so that on a GPU they tell nothing by themselves.
    """
    by_dtype = work.by_dtype
    if by_dtype:
        most = max(by_dtype, key=lambda d: by_dtype[d])
        return most, None if most is None else "kernels"
    return _input_dtype(events, gpu=bool((events.category == Category.KERNEL).any()))


def _low_precision(inputs: Shapes) -> str | None:
    """The dtype that inputs of 16 bits or fewer are multiplied in; FP32 may run as TF32 and tells nothing."""
    dtype = _input_types(inputs)
    return None if dtype == "fp32" else dtype


_EIGHT_BITS_OR_FEWER = ("c10::Float8", "c10::Float4", "unsigned char", "signed char", "c10::q")


def _input_types(inputs: Shapes) -> str | None:
    """The dtype of a product with these inputs. Where some have 8 bits or fewer, two of one such type alone tell it: beside
    16 bits they are weights to unpack, or the operator quantises inside."""
    types = _QUOTED.findall(inputs.types)
    narrow = [text for text in types if text.startswith(_EIGHT_BITS_OR_FEWER)]
    if narrow:
        operands = [text for text in types if text][:2]
        return next((d for text, d in _NARROW.items() if all(o.startswith(text) for o in operands)), None)
    return next((dtype for text, dtype in _INPUT_DTYPES.items() if text in types), None)


def _input_dtype(events: Events, *, gpu: bool) -> tuple[str | None, str | None]:
    """Return the type that most matrix products take, and how it is known; (None, None): not recorded, or TF32 may replace
    it."""
    codes = [c for c, n in enumerate(events.names) if n in MATRIX_PRODUCTS]
    chosen = np.isin(events.name, codes) & (events.shape != NONE) & (events.category == Category.CPU_OP)
    calls: dict[str, int] = {}
    shapes, counts = np.unique(events.shape[chosen], return_counts=True)
    for shape, count in zip(shapes.tolist(), counts.tolist(), strict=True):
        if dtype := _input_types(events.shapes[shape]):
            calls[dtype] = calls.get(dtype, 0) + count
    if not calls:
        return None, None
    best = max(calls, key=lambda d: calls[d])
    return (None, None) if best == "fp32" and gpu else (best, "inputs")
