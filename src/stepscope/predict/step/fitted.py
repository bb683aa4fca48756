"""Constants fitted on half of the published training runs; ``python -m benchmarks.fit_step FOLDER`` prints them anew.

docs/reference/validation.md says how they were fitted and what they reach on the rows they have not seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from stepscope.predict.step.calibration import StepCalibration

PUBLISHED = StepCalibration(
    name="published training runs",
    gemm_share=0.87,
    gemm_fp8_share=0.92,
    gemm_traffic=1.3,
    attention_share=0.6,
    attention_backward_share=0.478,
    kernel_us=6.0,
    launch_forward_us=53.2,
    launch_backward_us=151.0,
    launch_moe_us=3200.0,
    elementwise_factor=1.3,
    tp_overlap=0.536,
    pp_overlap=0.1,
    ep_overlap=0.516,
    comm_rate=0.759,
    overlap_slowdown=1.3,
    optimizer_share=0.552,
    step_us=19500.0,
    spread_per_doubling=0.003,
    gradient_factor=1.3,
    fragmentation=1.0,
)

STACKS: Mapping[str, Mapping[str, float]] = {
    "nanotron": {
        "launch_tp_us": 1000.0,
        "launch_tp_far_us": 115.0,
        "launch_tp_pipeline_us": 700.0,
        "factor": 1.1,
        "step_us": 37000.0,
        "gathered_ahead": 42.0,
    },
    "megatron tokendrop": {"launch_moe_us": 1600.0},
    "megatron-2021": {"factor": 1.2},
    "fsdp2": {"factor": 1.22},
    "composer": {"factor": 0.957, "attention_share": 0.151, "attention_backward_share": 0.559},
}
"""Constants of the code that runs the step, where published rows have its name; they replace those of ``PUBLISHED``."""

FAMILY_FACTOR: dict[str, float] = {"a100": 0.974, "a800": 0.95, "gb200": 1.096, "gb300": 0.929, "h100": 1.008}
"""On the time of a step, by :func:`gpu_family`."""

REACH: dict[str, tuple[float, float]] = {
    "zero-shot": (0.866, 1.139),
    "zero-shot moe": (0.79, 1.38),
    "family": (0.871, 1.131),
    "family moe": (0.875, 1.286),
    "new-layout": (0.836, 1.196),
    "one-row moe": (0.799, 1.403),
    "scale-out": (0.971, 1.048),
    "unseen": (0.75, 1.18),
    "unseen moe": (0.63, 1.44),
}
"""Factors on a predicted speed that give its 80% interval, by what is known: quantiles of rows that nothing was fitted on;
unseen: of sources that were left out of the fit, each in turn."""

SEEN_CODES = frozenset({"nanotron", "composer", "fsdp2", "megatron", "megatron tokendrop", "megatron-2021"})
"""Code that ran rows which the constants were fitted on, where a row names it."""

WIDER_PER_DOUBLING = 0.5
"""Variance that each doubling of GPUs away from the calibrating run adds, of the interval's own."""

MEMORY_LIMIT = 0.86
"""Of the memory that a GPU's driver reports, up to which a layout fits; the rest is kept for the prediction's own error
(mean 7.8%). Layouts between here and the whole are tight: of published ones 50 failed and 5 ran in sources that list
failures, and 86 ran in the others. Above the whole: 421 failed and 3 ran there, 237 ran in the others, two thirds of which
do not state recomputation."""


def of_stack(name: str | None) -> StepCalibration:
    """``PUBLISHED`` with what is known of the code that runs the step."""
    return replace(PUBLISHED, **dict(STACKS.get(name or "", {})))  # type: ignore[arg-type]


def gpu_family(key: str) -> str:
    """``h100`` of ``h100-sxm``."""
    return key.split("-")[0]
