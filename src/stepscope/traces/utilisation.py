"""MFU and HFU of a rank's steps: FLOP given or found in the trace, over time and the device's peak."""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

from stepscope.core.errors import Unavailable
from stepscope.hardware.lookup import find
from stepscope.records.trace_budget import StepBudget
from stepscope.records.trace_utilisation import StepUtilisation, Utilisation
from stepscope.traces.events import NONE, Category, Events, RankTrace
from stepscope.traces.flop import MATRIX_PRODUCTS, flop_by_event, uncounted_products
from stepscope.traces.kernels import uses_tensor_cores
from stepscope.traces.steps import step_marks

Ints = NDArray[np.int64]

FORMULA = "FLOP per step / (step time x devices x dense peak)"

_KERNEL_DTYPES = (
    ("fp8", re.compile(r"e4m3|e5m2|fp8|_F8|float8", re.IGNORECASE)),
    ("bf16", re.compile(r"bf16|bfloat16|Cijk_\w+_B[BS]S_", re.IGNORECASE)),
    ("tf32", re.compile(r"tf32", re.IGNORECASE)),
    ("fp16", re.compile(r"fp16|_h\d*gemm|h884|h1688|h16816|f16f16|__half|Cijk_\w+_H[HS]S_", re.IGNORECASE)),
    ("fp32", re.compile(r"(_|\b)sgemm|scudnn|Cijk_\w+_SB_")),
)
"""How the names of matrix kernels tell the dtype they multiply in, first match wins."""

_PRODUCT = re.compile(r"(?<!fb)gemm|scudnn|hcudnn|Cijk")

_INPUT_DTYPES = {"c10::BFloat16": "bf16", "c10::Half": "fp16", "float": "fp32"}


def utilisation(
    trace: RankTrace,
    steps: Sequence[StepBudget],
    *,
    model_flop: float | None = None,
    hardware_flop: float | None = None,
    dtype: str | None = None,
    devices: int = 1,
) -> Utilisation:
    """MFU and HFU over ``steps`` (the rank's; their parts' window is the step time).

    ``model_flop`` and ``hardware_flop`` are per step over all ``devices``. Without them the FLOP that the trace records
    (or its matrix products from their shapes) are hardware FLOP of this rank alone, as executed; they say nothing of
    the model's, since recomputation is among them.
    """
    events = trace.events
    name = trace.meta.device_names[0] if trace.meta.device_names else None
    reasons: list[str] = []
    source: str | None = None
    incomplete: tuple[str, ...] = ()
    if model_flop is not None or hardware_flop is not None:
        source = "given"
    else:
        hardware_flop, source, incomplete, why = _executed(events)
        devices = 1
        if why:
            reasons.append(why)
    chosen, dtype_source = (dtype, "given") if dtype else matrix_dtype(events)
    if chosen is None:
        reasons.append("the dtype of the matrix products is not known; give it (dtype)")
    peak, peak_source = None, None
    found = find(name) if name else Unavailable("the trace names no device")
    if isinstance(found, Unavailable):
        reasons.append(f"peak unknown: {found.reason}")
    elif chosen is not None:
        rate = found.peak(chosen)
        if isinstance(rate, Unavailable):
            reasons.append(f"peak unknown: {rate.reason}")
        else:
            peak, peak_source = rate, found.source
    # A step that launched no device work takes no time on the device.
    steps = [s for s in steps if s.parts.window_ns > 0]
    if not steps:
        reasons.append("no steps: the trace has no ProfilerStep annotations")

    def used(flop: float | None, ns: float) -> float | None:
        return None if flop is None or peak is None or ns <= 0 else flop / (ns / 1e9 * devices * peak)

    typical = float(median(s.parts.window_ns for s in steps)) if steps else None
    mfu = used(model_flop, typical) if typical is not None else None
    hfu = used(hardware_flop, typical) if typical is not None else None
    return Utilisation(
        rank=trace.rank,
        device_name=name,
        dtype=chosen,
        dtype_source=dtype_source,
        peak_flops_per_s=peak,
        peak_source=peak_source,
        devices=devices,
        model_flop=model_flop,
        hardware_flop=hardware_flop,
        flop_source=source if model_flop is not None or hardware_flop is not None else None,
        flop_incomplete=incomplete,
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
        error=_impossible(mfu, hfu),
    )


def _impossible(mfu: float | None, hfu: float | None) -> str | None:
    high = [f"{label} {value:.2f}" for label, value in (("MFU", mfu), ("HFU", hfu)) if value is not None and value > 1]
    if not high:
        return None
    return (
        f"{' and '.join(high)}: no device does more than its peak; the FLOP count (per step, of all devices?), the "
        "dtype or the number of devices is wrong"
    )


def _executed(events: Events) -> tuple[float | None, str | None, tuple[str, ...], str | None]:
    """FLOP per step as executed, where from, what is not counted, or why it is not known."""
    chosen = events.where(Category.CPU_OP)
    flop, source, why = flop_by_event(events, chosen)
    if why is not None:
        return None, None, (), f"FLOP unknown: {why}; give the model's"
    missing = uncounted_products(events)
    if missing:
        return (
            None,
            None,
            missing,
            (
                f"FLOP unknown: {', '.join(missing[:3])} are in the trace and their shapes do not tell their FLOP; "
                "give the model's"
            ),
        )
    marks = step_marks(events)
    if not len(marks):
        return None, None, (), None
    inside = (events.ts_ns[chosen] >= marks.starts[0]) & (events.ts_ns[chosen] < marks.ends[-1])
    counted = flop[inside & (flop > 0)]
    return float(counted.sum()) / len(marks), source, (), None


def matrix_dtype(events: Events) -> tuple[str | None, str | None]:
    """The dtype that most matrix work is done in and where that is from: kernels by time, else inputs by calls.

    None where neither tells: float32 inputs may be multiplied in TF32 on GPUs that have it, so that on a GPU they tell
    nothing by themselves.
    """
    kernels = events.where(Category.KERNEL)
    if len(kernels):
        spent = np.bincount(events.name[kernels], weights=events.dur_ns[kernels], minlength=len(events.names))
        by_dtype: dict[str, float] = {}
        for code in np.flatnonzero(spent).tolist():
            name = events.names[code]
            if not (uses_tensor_cores(name) or _PRODUCT.search(name)):
                continue
            for dtype, pattern in _KERNEL_DTYPES:
                if pattern.search(name):
                    by_dtype[dtype] = by_dtype.get(dtype, 0.0) + float(spent[code])
                    break
        if by_dtype:
            return max(by_dtype, key=lambda d: by_dtype[d]), "kernels"
    return _input_dtype(events, gpu=len(kernels) > 0)


def _input_dtype(events: Events, *, gpu: bool) -> tuple[str | None, str | None]:
    codes = [c for c, n in enumerate(events.names) if n in MATRIX_PRODUCTS]
    chosen = np.isin(events.name, codes) & (events.shape != NONE) & (events.category == Category.CPU_OP)
    calls: dict[str, int] = {}
    shapes, counts = np.unique(events.shape[chosen], return_counts=True)
    for shape, count in zip(shapes.tolist(), counts.tolist(), strict=True):
        for text, dtype in _INPUT_DTYPES.items():
            if f'"{text}"' in events.shapes[shape].types:
                calls[dtype] = calls.get(dtype, 0) + count
                break
    if not calls:
        return None, None
    best = max(calls, key=lambda d: calls[d])
    return (None, None) if best == "fp32" and gpu else (best, "inputs")
