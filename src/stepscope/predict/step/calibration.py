"""Every constant of the step model that a measurement can replace, and the interval of what they predict.

``PUBLISHED``, published.json: fitted on half of the published training runs; ``python -m benchmarks.fit_step FOLDER``
prints them anew.
docs/reference/validation.md says how they were fitted and what they reach on the rows they have not seen.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from stepscope.core.dataclass import record
from stepscope.machine.peaks import Accelerator
from stepscope.predict.collectives.costs import Z80


@record
class Range:
    """What a calibration has seen: outside of it a prediction is extrapolated. params: of the models."""

    gpus: tuple[int, int]
    params: tuple[int, int]
    accelerators: tuple[str, ...]


@record
class StepCalibration:
    """Shares are of the specification's peak. Defaults: public kernel benchmarks, rounded; not fitted to training runs.

    gemm_share, gemm_fp8_share: large matrix products, of what the GPU's best one reaches; gemm_traffic: factor on their
    operands' bytes, whose time adds to that of their FLOP (this makes small and thin products slow).
    attention_share, attention_backward_share: fused attention, forward and backward. memory_share: of the memory's rate.
    kernel_us: least time of one kernel on the device. elementwise_factor: bytes moved by norms, activations and residuals
    over what fused kernels move. launch_forward_us, launch_backward_us: the host's time for a layer and micro-batch, a
    floor under the device's time; launch_moe_us: more of it for a layer of experts, each way; launch_tp_us: for each
    tensor-parallel collective, at least launch_tp_far_us x tp where tp leaves a node, and launch_tp_pipeline_us x tp in
    pipelines over several nodes. host_kernel_us, host_view_us, host_compiled_us: the host's time for one operator of a dry
    run: that runs a kernel, that runs none, and for a kernel of compiled code; host_dtensor_us: more of it for an operator
    on distributed tensors; host_call_us: for a collective. tp_overlap, pp_overlap, ep_overlap: share of such traffic hidden.
    comm_rate: share of the collective model's rate reached under a training step; comm_near_rate: the same of collectives of
    a dry run within a node; overlap_slowdown: computation beside
    communication, factor on its time. optimizer_share: of the memory's rate, in the optimizer. step_us: fixed time of one.
    spread_per_doubling: time lost to the slowest GPU for each doubling above 8 GPUs, share. factor: on the whole step.
    fragmentation: factor on what moves; gradient_factor: gradients with the buffers they travel in; gathered_ahead:
    inputs of tensor-parallel layers that the host gathers ahead of the device;
    base_bytes: context, libraries, buffers. log_sigma: standard deviation of log(measured / predicted); reach:
    factors on a speed that give its 80% interval instead, reach_from: GPUs it was measured on. range: what it was fitted
    on (see Range). name: of the fit.
    """

    name: str = "specification only"
    gemm_share: float = 0.95
    gemm_fp8_share: float = 0.80
    gemm_traffic: float = 1.0
    attention_share: float = 0.45
    attention_backward_share: float = 0.38
    memory_share: float = 0.80
    kernel_us: float = 3.0
    launch_forward_us: float = 250.0
    launch_backward_us: float = 350.0
    launch_moe_us: float = 0.0
    launch_tp_us: float = 150.0
    launch_tp_far_us: float = 0.0
    launch_tp_pipeline_us: float = 0.0
    host_kernel_us: float = 6.0
    host_view_us: float = 1.5
    host_compiled_us: float = 2.5
    host_dtensor_us: float = 20.0
    host_call_us: float = 100.0
    elementwise_factor: float = 1.5
    tp_overlap: float = 0.2
    pp_overlap: float = 0.0
    ep_overlap: float = 0.0
    comm_rate: float = 0.80
    comm_near_rate: float = 0.80
    overlap_slowdown: float = 1.08
    optimizer_share: float = 0.6
    step_us: float = 5000.0
    spread_per_doubling: float = 0.008
    factor: float = 1.0
    gradient_factor: float = 1.0
    gathered_ahead: float = 0.0
    fragmentation: float = 1.06
    base_bytes: float = 1.5e9
    log_sigma: float = 0.35
    reach: tuple[float, float] | None = None
    reach_from: tuple[int, ...] = ()
    range: Range | None = None


_FITTED: Mapping[str, Any] = json.loads(Path(__file__).with_name("published.json").read_bytes())
PUBLISHED = StepCalibration(**_FITTED["published"])
STACKS: Mapping[str, Mapping[str, float]] = _FITTED["stacks"]
"""Constants of the code that runs the step, where published rows have its name; they replace those of ``PUBLISHED``."""

FAMILY_FACTOR: dict[str, float] = _FITTED["family_factor"]
"""On the time of a step, by :func:`gpu_family`."""

REACH: Mapping[str, tuple[float, float]] = {kind: (low, high) for kind, (low, high) in _FITTED["reach"].items()}
"""Factors on a predicted speed that give its 80% interval, by what is known: quantiles of rows that nothing was fitted on;
unseen: of sources that were left out of the fit, each in turn."""

WIDER_PER_DOUBLING = 0.5
"""Variance that each doubling of GPUs away from the calibrating run adds, of the interval's own."""

MEMORY_LIMIT = 0.86
"""Of the memory that a GPU's driver reports, up to which a layout fits; the rest is kept for the prediction's own error
(mean 7.8%). Layouts between here and the whole are tight: of published ones 50 failed and 5 ran in sources that list
failures, and 86 ran in the others. Above the whole: 421 failed and 3 ran there, 237 ran in the others, two thirds of which
do not state recomputation."""


_DRY: Mapping[str, Any] = {**_FITTED["dry"], "reach": tuple(_FITTED["dry"]["reach"])}
DRY = replace(
    PUBLISHED,
    **_DRY,
    range=Range(
        gpus=(8, 256),
        params=(125_000_000, 70_000_000_000),
        accelerators=("a100-sxm4-40gb", "a100-sxm4-80gb", "h100-sxm"),
    ),
)
"""For dry runs, whose operators are recorded, not guessed: of Hopper GPUs, whose power limits products and for which torch's
attention was not written."""

DRY_BEFORE_HOPPER = replace(DRY, **_FITTED["dry_ampere"])


def verdict(needs_bytes: float, device_bytes: float) -> Literal["fits", "tight", "too large"]:
    """Return whether it fits with the reserve of ``MEMORY_LIMIT``; tight: it takes some of the reserve, and not more than
    there is: published layouts of that kind ran or failed."""
    return (
        "fits"
        if needs_bytes <= MEMORY_LIMIT * device_bytes
        else "tight"
        if needs_bytes <= device_bytes
        else "too large"
    )


def of_stack(name: str | None) -> StepCalibration:
    """``PUBLISHED`` with what is known of the code that runs the step."""
    return replace(PUBLISHED, **dict(STACKS.get(name or "", {})))  # type: ignore[arg-type]


def gpu_family(key: str) -> str:
    """Return the family in a GPU's key: ``h100`` of ``h100-sxm``."""
    return key.split("-")[0]


def of_dry_runs(gpu: Accelerator) -> StepCalibration:
    """Return what a dry run is priced by on this GPU."""
    return DRY_BEFORE_HOPPER if gpu.generation in ("volta", "ampere") else DRY


EXTRAPOLATED = 1.5
"""Widening of the interval's logarithm outside of what the calibration has seen."""


def reach_at(calibration: StepCalibration, gpus: int) -> tuple[float, float]:
    """Factors on a speed that give its 80% interval; wider with each doubling of GPUs away from the nearest measurement."""
    spread = math.exp(Z80 * calibration.log_sigma)
    low, high = calibration.reach or (1 / spread, spread)
    away = min((abs(math.log2(gpus / n)) for n in calibration.reach_from), default=0.0)
    wide = math.sqrt(1 + WIDER_PER_DOUBLING * away)
    return low**wide, high**wide
